"""Policies in the ledger: every version that was ever used, and who made which one active, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from pipeline.canonical import digest
from pipeline.errors import Reason, UserError
from pipeline.runs import Activation
from pipeline.stores.database import Database
from pipeline.stores.schema import activations, audit, policies, policy_versions

LEAST_HASH_CHARS = 6
_ACTIVATION = (
    activations.c.id,
    activations.c.at,
    activations.c.who,
    activations.c.why,
    activations.c.document_hash,
    policy_versions.c.name,
    policy_versions.c.decision_hash,
)


class Policies:
    """The part of the ledger that keeps policies. Activations are only ever added; the newest holds."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def remember_policy(self, name: str, decision_hash: str, document: Mapping[str, Any]) -> None:
        """Keep the document behind a decision hash; the newest commercial part replaces an older one."""
        with self.database.begin() as connection:
            _remember(connection, name, decision_hash, document)

    def policy(self, decision_hash: str) -> dict[str, Any] | None:
        """The document behind a decision hash: as last activated, else as last seen; None where never seen."""
        activated = (
            sa.select(policy_versions.c.document)
            .join(activations, activations.c.document_hash == policy_versions.c.document_hash)
            .where(policy_versions.c.decision_hash == decision_hash)
            .order_by(activations.c.id.desc())
            .limit(1)
        )
        seen = sa.select(policies.c.document).where(policies.c.decision_hash == decision_hash)
        with self.database.begin() as connection:
            document: dict[str, Any] | None = connection.scalar(activated)
            if document is None:
                document = connection.scalar(seen.order_by(policies.c.first_seen_at).limit(1))
        return document

    def policy_version(self, hash_prefix: str) -> dict[str, Any] | None:
        """The newest document whose document hash or decision hash starts so; None where there is none.

        Raises UserError(BAD_INPUT) for less than 6 characters, or where several document or decision hashes do.
        """
        if len(hash_prefix) < LEAST_HASH_CHARS:
            raise UserError(
                Reason.BAD_INPUT, f"'{hash_prefix}' is too short for a hash: give {LEAST_HASH_CHARS} or more"
            )
        starts = [policy_versions.c[name].startswith(hash_prefix, autoescape=True) for name in _HASHES]
        wanted = sa.select(policy_versions).where(sa.or_(*starts)).order_by(policy_versions.c.first_seen_at.desc())
        with self.database.begin() as connection:
            rows = connection.execute(wanted).all()
        exact = [row for row in rows if row.document_hash.startswith(hash_prefix)]
        if len(exact or {row.decision_hash for row in rows}) > 1:
            raise UserError(Reason.BAD_INPUT, f"several versions start with '{hash_prefix}': give more characters")
        found = next(iter(exact or rows), None)
        return None if found is None else dict(found.document)

    def activate_policy(
        self, name: str, decision_hash: str, document: Mapping[str, Any], *, who: str, why: str
    ) -> Activation:
        """Make a version the active one from now on; it and its activation are kept for good."""
        with self.database.begin() as connection:
            document_hash = _remember(connection, name, decision_hash, document)
            new = sa.insert(activations).values(document_hash=document_hash, who=who, why=why)
            row = connection.execute(new.returning(activations.c.id, activations.c.at)).one()
            detail = {"policy": name, "decision_hash": decision_hash, "document_hash": document_hash, "why": why}
            connection.execute(
                sa.insert(audit).values(actor=who, action="activate_policy", subject=f"policy:{name}", detail=detail)
            )
        return Activation(row.id, row.at, who, why, name, decision_hash, document_hash)

    def active_policy(self) -> tuple[Activation, dict[str, Any]] | None:
        """The newest activation and its document; None where nothing was ever activated."""
        wanted = sa.select(*_ACTIVATION, policy_versions.c.document).select_from(activations.join(policy_versions))
        with self.database.begin() as connection:
            row = connection.execute(wanted.order_by(activations.c.id.desc()).limit(1)).one_or_none()
        return None if row is None else (_activation(row), dict(row.document))

    def activations(self, *, limit: int = 100) -> list[Activation]:
        """The newest first."""
        wanted = sa.select(*_ACTIVATION).select_from(activations.join(policy_versions))
        with self.database.begin() as connection:
            return [
                _activation(row)
                for row in connection.execute(wanted.order_by(activations.c.id.desc()).limit(limit)).all()
            ]


_HASHES = ("document_hash", "decision_hash")


def _remember(connection: sa.Connection, name: str, decision_hash: str, document: Mapping[str, Any]) -> str:
    document_hash = digest(document)
    values = {"name": name, "decision_hash": decision_hash, "document": dict(document)}
    latest = insert(policies).values(values)
    connection.execute(
        latest.on_conflict_do_update(
            index_elements=["name", "decision_hash"], set_={"document": latest.excluded.document}
        )
    )
    version = insert(policy_versions).values(values | {"document_hash": document_hash})
    connection.execute(version.on_conflict_do_nothing())
    return document_hash


def _activation(row: Any) -> Activation:
    return Activation(row.id, row.at, row.who, row.why, row.name, row.decision_hash, row.document_hash)
