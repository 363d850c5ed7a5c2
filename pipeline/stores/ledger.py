"""The ledger: everything that must be known about videos, runs, verdicts, money and people's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from pipeline.stores import migrate
from pipeline.stores.backlog import Backlog
from pipeline.stores.budgets import Budgets
from pipeline.stores.claims import Claims
from pipeline.stores.costs import Costs
from pipeline.stores.database import Database
from pipeline.stores.escalations import Escalations
from pipeline.stores.policies import Policies
from pipeline.stores.reviews import Reviews
from pipeline.stores.runviews import RunViews
from pipeline.stores.schema import audit
from pipeline.stores.tenancy import Tenancy


class Ledger(Claims, Backlog, RunViews, Reviews, Tenancy, Policies, Budgets, Costs, Escalations):
    """All parts of the ledger over one pool of connections; safe to share between threads.

    Every method raises TransientError(DATABASE_UNAVAILABLE) while the database cannot be reached, and
    FatalError(SCHEMA_OUTDATED) where its schema is missing. All times are the database's clock.
    """

    @classmethod
    def connect(cls, url: str, *, pool_size: int = 5) -> Ledger:
        """Prepare a ledger; nothing is connected before the first use. A bad URL is a UserError."""
        return cls(Database.connect(url, pool_size=pool_size))

    def close(self) -> None:
        self.database.close()

    def check(self) -> None:
        """Make sure that the database can be reached and has the schema this program needs."""
        migrate.check(self.database)

    def audit(self, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None:
        """Add a line to the audit; lines are never changed or taken away."""
        values = {"actor": actor, "action": action, "subject": subject, "detail": dict(detail or {})}
        with self.database.begin() as connection:
            connection.execute(sa.insert(audit).values(values))


def connect(url: str, *, pool_size: int = 5) -> Ledger:
    return Ledger.connect(url, pool_size=pool_size)


upgrade = migrate.upgrade
