"""The ledger: everything that must be known about videos, runs, verdicts, money and people's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from pipeline.stores import migrate
from pipeline.stores.backlog import Backlog
from pipeline.stores.budgets import Budgets
from pipeline.stores.claims import Claims
from pipeline.stores.database import Database
from pipeline.stores.escalations import Escalations
from pipeline.stores.reviews import Reviews
from pipeline.stores.runviews import RunViews
from pipeline.stores.schema import audit, policies
from pipeline.stores.tenancy import Tenancy


class Ledger(Claims, Backlog, RunViews, Reviews, Tenancy, Budgets, Escalations):
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

    def remember_policy(self, name: str, decision_hash: str, document: Mapping[str, Any]) -> None:
        """Keep the document behind a decision hash; the newest commercial part replaces an older one."""
        values = {"name": name, "decision_hash": decision_hash, "document": dict(document)}
        with self.database.begin() as connection:
            statement = insert(policies).values(values)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["name", "decision_hash"], set_={"document": statement.excluded.document}
                )
            )

    def policy(self, decision_hash: str) -> dict[str, Any] | None:
        """The policy document behind a decision hash, None where none was ever remembered."""
        wanted = sa.select(policies.c.document).where(policies.c.decision_hash == decision_hash)
        with self.database.begin() as connection:
            document: dict[str, Any] | None = connection.scalar(wanted.order_by(policies.c.first_seen_at).limit(1))
        return document

    def audit(self, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None:
        """Add a line to the audit; lines are never changed or taken away."""
        values = {"actor": actor, "action": action, "subject": subject, "detail": dict(detail or {})}
        with self.database.begin() as connection:
            connection.execute(sa.insert(audit).values(values))


def connect(url: str, *, pool_size: int = 5) -> Ledger:
    return Ledger.connect(url, pool_size=pool_size)


upgrade = migrate.upgrade
