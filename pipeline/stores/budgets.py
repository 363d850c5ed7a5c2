"""Budgets in PostgreSQL: conditional updates under row locks, so that no number of workers can overspend.

Each policy has a row for its day and one for each tenant's day. A reservation is taken in one transaction, the day's
row first, then the tenant's: always in that order, so that two workers never wait for each other.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from pipeline.budgets import BudgetScope, Caps, Exhausted, Reservation
from pipeline.errors import LeaseLostError
from pipeline.stores.database import Database
from pipeline.stores.schema import budgets, reservations, runs, uploads, videos
from pipeline.verdict import RunState

DAY_SUBJECT = "all"
NO_TENANT = "tenant:none"

_now = sa.func.now()
_today = sa.cast(sa.func.timezone("UTC", _now), sa.Date)
_to_midnight_s = sa.extract(
    "epoch", sa.func.date_trunc("day", sa.func.timezone("UTC", _now)) + sa.text("interval '1 day'")
) - sa.extract("epoch", sa.func.timezone("UTC", _now))
_HELD = sa.and_(reservations.c.settled_at.is_(None), reservations.c.expired_at.is_(None))
_HAS_LEASE = sa.exists().where(
    runs.c.id == reservations.c.run_id,
    runs.c.fence == reservations.c.fence,
    runs.c.state.in_((RunState.PROCESSING, RunState.ESCALATED)),
    runs.c.lease_until > _now,
)


class _SpentError(Exception):
    """Rolls a reservation back that only fits some of its budgets."""

    def __init__(self, exhausted: Exhausted) -> None:
        super().__init__(exhausted.scope)
        self.exhausted = exhausted


class Budgets:
    """The ledger's budget book (`pipeline.budgets.BudgetBook`). All times are the database's clock."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def reserve(self, run_id: UUID, fence: int, *, caps: Caps, amount_nano: int) -> Reservation | Exhausted:
        """Hold `amount_nano` for the run, for its tenant's day and for the policy's day, all or nothing.

        Where a budget looks spent, reservations whose workers died are taken back, and it is tried once more.
        Raises LeaseLostError where the run is not ours any more.
        """
        if amount_nano < 0:
            raise ValueError(f"a reservation cannot be negative: {amount_nano}")
        found = self._try(run_id, fence, caps, amount_nano)
        if isinstance(found, Exhausted) and self.expire(caps):
            return self._try(run_id, fence, caps, amount_nano)
        return found

    def _try(self, run_id: UUID, fence: int, caps: Caps, amount_nano: int) -> Reservation | Exhausted:
        try:
            with self.database.begin() as connection:
                subject = _subject(connection, run_id, fence)
                _check_video(connection, run_id, caps, amount_nano)
                day = connection.scalar(sa.select(_today))
                _hold(connection, caps, day, DAY_SUBJECT, BudgetScope.PER_DAY, caps.per_day_nano, amount_nano)
                _hold(connection, caps, day, subject, BudgetScope.PER_TENANT_DAY, caps.per_tenant_day_nano, amount_nano)
                reservation = Reservation(uuid4(), amount_nano)
                connection.execute(
                    sa.insert(reservations).values(
                        id=reservation.id,
                        run_id=run_id,
                        fence=fence,
                        policy=caps.policy,
                        currency=caps.currency,
                        day=day,
                        subject=subject,
                        amount_nano=amount_nano,
                    )
                )
                return reservation
        except _SpentError as spent:
            return spent.exhausted

    def settle(self, reservation: Reservation, actual_nano: int) -> None:
        """Exchange what was held for what was spent; a second time changes nothing.

        What was spent counts even if the reservation had expired meanwhile: the books say what happened.
        """
        if actual_nano < 0:
            raise ValueError(f"nothing costs less than nothing: {actual_nano}")
        with self.database.begin() as connection:
            row = connection.execute(
                sa.update(reservations)
                .where(reservations.c.id == reservation.id, reservations.c.settled_at.is_(None))
                .values(settled_at=_now, actual_nano=actual_nano)
                .returning(*reservations.c)
            ).one_or_none()
            if row is not None:
                _move(connection, row, held=0 if row.expired_at else -row.amount_nano, spent=actual_nano)

    def expire(self, caps: Caps) -> int:
        """Take back what is held for runs whose lease ended without settling; how many that were."""
        with self.database.begin() as connection:
            orphans = (
                sa.select(reservations.c.id)
                .where(
                    reservations.c.policy == caps.policy,
                    reservations.c.currency == caps.currency,
                    _HELD,
                    sa.not_(_HAS_LEASE),
                )
                .with_for_update(skip_locked=True)
            )
            rows = connection.execute(
                sa.update(reservations)
                .where(reservations.c.id.in_(orphans.scalar_subquery()))
                .values(expired_at=_now)
                .returning(*reservations.c)
            ).all()
            for row in sorted(rows, key=lambda row: (row.day, row.subject)):
                _move(connection, row, held=-row.amount_nano, spent=0)
            return len(rows)

    def budget(self, caps: Caps, *, tenant_id: UUID | None = None) -> tuple[int, int]:
        """What is spent and what is held today, in nano-units: of a tenant where one is given, else of all."""
        subject = DAY_SUBJECT if tenant_id is None else _of_tenant(tenant_id)
        with self.database.begin() as connection:
            row = connection.execute(
                sa.select(budgets.c.spent_nano, budgets.c.reserved_nano).where(
                    _key(caps.policy, caps.currency, _today, subject)
                )
            ).one_or_none()
        return (0, 0) if row is None else (row.spent_nano, row.reserved_nano)


def _subject(connection: sa.Connection, run_id: UUID, fence: int) -> str:
    """Whose budget a run is on. The run must be ours."""
    row = connection.execute(
        sa.select(uploads.c.tenant_id)
        .select_from(runs.join(videos).outerjoin(uploads))
        .where(
            runs.c.id == run_id,
            runs.c.fence == fence,
            runs.c.state.in_((RunState.PROCESSING, RunState.ESCALATED)),
            runs.c.lease_until > _now,
        )
    ).one_or_none()
    if row is None:
        raise LeaseLostError(f"run {run_id} is no longer held under fence {fence}")
    return _of_tenant(row.tenant_id)


def _of_tenant(tenant_id: UUID | None) -> str:
    return NO_TENANT if tenant_id is None else f"tenant:{tenant_id}"


def _check_video(connection: sa.Connection, run_id: UUID, caps: Caps, amount_nano: int) -> None:
    """Only one worker has the run, so nothing can come between this look and the reservation."""
    if caps.per_video_nano is None:
        return
    held = sa.func.coalesce(sa.func.sum(reservations.c.amount_nano).filter(_HELD), 0)
    spent = sa.func.coalesce(sa.func.sum(reservations.c.actual_nano), 0)
    row = connection.execute(
        sa.select(spent.label("spent"), held.label("held")).where(reservations.c.run_id == run_id)
    ).one()
    if row.spent + row.held + amount_nano > caps.per_video_nano:
        raise _SpentError(
            Exhausted(
                BudgetScope.PER_VIDEO, caps.per_video_nano, int(row.spent), int(row.held), amount_nano, resets_in_s=None
            )
        )


def _hold(
    connection: sa.Connection,
    caps: Caps,
    day: Any,
    subject: str,
    scope: BudgetScope,
    cap_nano: int | None,
    amount_nano: int,
) -> None:
    """Add to what is held, in one statement that finds no row where the cap would be passed."""
    key = {"policy": caps.policy, "currency": caps.currency, "day": day, "subject": subject}
    connection.execute(insert(budgets).values(key).on_conflict_do_nothing())
    ours = _key(caps.policy, caps.currency, day, subject)
    fits = sa.true() if cap_nano is None else budgets.c.spent_nano + budgets.c.reserved_nano + amount_nano <= cap_nano
    taken = connection.execute(
        sa.update(budgets).where(ours, fits).values(reserved_nano=budgets.c.reserved_nano + amount_nano)
    )
    if taken.rowcount == 1:
        return
    row = connection.execute(
        sa.select(budgets.c.spent_nano, budgets.c.reserved_nano, _to_midnight_s.label("left_s")).where(ours)
    ).one()
    raise _SpentError(
        Exhausted(scope, cap_nano or 0, row.spent_nano, row.reserved_nano, amount_nano, float(row.left_s))
    )


def _move(connection: sa.Connection, reservation: sa.Row[Any], *, held: int, spent: int) -> None:
    """Change both books that a reservation stands in, the day's first."""
    for subject in (DAY_SUBJECT, reservation.subject):
        connection.execute(
            sa.update(budgets)
            .where(_key(reservation.policy, reservation.currency, reservation.day, subject))
            .values(reserved_nano=budgets.c.reserved_nano + held, spent_nano=budgets.c.spent_nano + spent)
        )


def _key(policy: str, currency: str, day: Any, subject: str) -> sa.ColumnElement[bool]:
    return sa.and_(
        budgets.c.policy == policy,
        budgets.c.currency == currency,
        budgets.c.day == day,
        budgets.c.subject == subject,
    )
