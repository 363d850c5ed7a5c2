"""Reading runs back, and sending a failed one round again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from pipeline.errors import Reason, UserError
from pipeline.runs import Lane, RunView, VerdictView
from pipeline.stores.database import Database
from pipeline.stores.schema import answers, audit, runs, tenants, uploads, verdicts, videos
from pipeline.verdict import Answer, RunState

_now = sa.func.now()
_COLUMNS = (
    *runs.c,
    videos.c.bucket,
    videos.c.key,
    videos.c.version,
    videos.c.size_bytes,
    tenants.c.name.label("tenant"),
)
_JOINED = runs.join(videos).outerjoin(uploads).outerjoin(tenants)


class RunViews:
    """The part of the ledger that shows runs. With a `tenant_id`, only that tenant's can be seen."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def run(self, run_id: UUID, tenant_id: UUID | None = None) -> RunView | None:
        wanted = sa.select(*_COLUMNS).select_from(_JOINED).where(runs.c.id == run_id, _of(tenant_id))
        with self.database.begin() as connection:
            return next(iter(_views(connection, wanted)), None)

    def runs(
        self,
        state: RunState | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
        tenant_id: UUID | None = None,
    ) -> list[RunView]:
        """Runs, the newest first."""
        wanted = sa.select(*_COLUMNS).select_from(_JOINED).where(_of(tenant_id))
        if state is not None:
            wanted = wanted.where(runs.c.state == state)
        with self.database.begin() as connection:
            return _views(connection, wanted.order_by(runs.c.created_at.desc(), runs.c.id).limit(limit).offset(offset))

    def counts(
        self,
        states: Collection[RunState] = tuple(RunState),
        *,
        lane: Lane | None = None,
        decision_hash: str | None = None,
    ) -> dict[RunState, int]:
        """How many runs are in each of `states`. Counting only open states is quick however long the history."""
        wanted = sa.select(runs.c.state, sa.func.count()).group_by(runs.c.state)
        if lane is not None:
            wanted = wanted.where(runs.c.lane == lane)
        if decision_hash is not None:
            wanted = wanted.where(runs.c.decision_hash == decision_hash)
        if set(states) != set(RunState):
            # Written out, so that the planner can match them with the partial indexes.
            names = ", ".join(f"'{RunState(state).value}'" for state in states) or "''"
            wanted = wanted.where(sa.text(f"runs.state IN ({names})"))
        with self.database.begin() as connection:
            found = {RunState(state): count for state, count in connection.execute(wanted)}
        return {state: found.get(state, 0) for state in states}

    def stale_runs(self, older_than_s: float, limit: int) -> list[RunView]:
        """Runs whose message seems lost, the longest waiting first.

        Queued without a sign of life for `older_than_s`, processing whose lease ended that long ago, escalated
        and not judged for as long, deferred and due. `mark_enqueued` makes a run wait for as long again.
        """
        before = _now - sa.func.make_interval(0, 0, 0, 0, 0, 0, older_than_s)
        last_sign = sa.func.greatest(runs.c.enqueued_at, runs.c.updated_at, runs.c.due_at)
        stale = sa.or_(
            sa.and_(runs.c.state == RunState.QUEUED, last_sign < before),
            sa.and_(
                runs.c.state == RunState.PROCESSING,
                sa.func.greatest(runs.c.lease_until, runs.c.enqueued_at) < before,
            ),
            sa.and_(runs.c.state == RunState.ESCALATED, sa.func.greatest(last_sign, runs.c.lease_until) < before),
            sa.and_(
                runs.c.state == RunState.DEFERRED,
                runs.c.due_at <= _now,
                sa.func.coalesce(runs.c.enqueued_at < runs.c.due_at, True),
            ),
        )
        wanted = (
            sa.select(*_COLUMNS)
            .select_from(_JOINED)
            .where(sa.text("runs.state IN ('queued', 'processing', 'escalated', 'deferred')"), stale)
            .order_by(runs.c.updated_at)
            .limit(limit)
        )
        with self.database.begin() as connection:
            return _views(connection, wanted)

    def requeue(self, run_id: UUID, *, who: str) -> None:
        """Give a failed run a fresh start: queued, its attempts forgotten, to be sent by the next `register`."""
        with self.database.begin() as connection:
            changed = connection.execute(
                sa.update(runs)
                .where(runs.c.id == run_id, runs.c.state == RunState.FAILED)
                .values(
                    state=RunState.QUEUED,
                    attempts=0,
                    faults=0,
                    enqueued_at=None,
                    due_at=None,
                    updated_at=_now,
                )
            )
            if changed.rowcount != 1:
                raise UserError(Reason.BAD_INPUT, f"there is no failed run {run_id}")
            connection.execute(sa.insert(audit).values(actor=who, action="requeue", subject=f"run:{run_id}", detail={}))


def _of(tenant_id: UUID | None) -> sa.ColumnElement[bool]:
    return sa.true() if tenant_id is None else uploads.c.tenant_id == tenant_id


def _views(connection: sa.Connection, wanted: sa.Select[Any]) -> list[RunView]:
    rows = connection.execute(wanted).all()
    given = _verdicts(connection, [row.id for row in rows])
    return [_view(row, given[row.id]) for row in rows]


def _verdicts(connection: sa.Connection, run_ids: list[UUID]) -> dict[UUID, list[VerdictView]]:
    latest = (
        sa.select(answers.c.answer.label("given"), answers.c.who)
        .where(answers.c.run_id == verdicts.c.run_id, answers.c.question == verdicts.c.question)
        .order_by(answers.c.id.desc())
        .limit(1)
        .lateral("latest")
    )
    rows = connection.execute(
        sa.select(*verdicts.c, latest.c.given, latest.c.who)
        .select_from(verdicts.outerjoin(latest, sa.true()))
        .where(verdicts.c.run_id == sa.any_(sa.literal(run_ids, sa.ARRAY(sa.Uuid))))
        .order_by(verdicts.c.run_id, verdicts.c.position)
    ).all()
    found: dict[UUID, list[VerdictView]] = defaultdict(list)
    for row in rows:
        found[row.run_id].append(
            VerdictView(
                question=row.question,
                machine_answer=Answer(row.answer),
                answer=Answer(row.given or row.answer),
                score=row.score,
                stage=row.stage,
                model=row.model,
                weights_sha256=row.weights_sha256,
                owner=row.owner,
                evidence=tuple(row.evidence),
                reason=row.reason,
                answered_by=row.who,
            )
        )
    return found


def _view(row: sa.Row[Any], given: list[VerdictView]) -> RunView:
    return RunView(
        run_id=row.id,
        bucket=row.bucket,
        key=row.key,
        version=row.version,
        tenant=row.tenant,
        policy=row.policy,
        decision_hash=row.decision_hash,
        state=RunState(row.state),
        lane=Lane(row.lane),
        attempts=row.attempts,
        faults=row.faults,
        fence=row.fence,
        trace_id=row.trace_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        decided_at=row.decided_at,
        lease_until=row.lease_until,
        reason=row.reason,
        detail=row.detail,
        result_key=row.result_key,
        money_nano=row.money_nano,
        currency=row.currency,
        cpu_s=row.cpu_s,
        coverage=row.coverage,
        warnings=tuple(row.warnings),
        size_bytes=row.size_bytes,
        verdicts=tuple(given),
    )
