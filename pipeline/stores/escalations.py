"""Who may judge an escalated run: claims as for screening, by the same lease and fence, for runs in another state."""

from __future__ import annotations

import sqlalchemy as sa

from pipeline.errors import PermanentError, Reason
from pipeline.media import ObjectRef
from pipeline.runs import Busy, Claimed, ClaimResult, Settled
from pipeline.stores.database import Database
from pipeline.stores.schema import runs, tenants, uploads, videos
from pipeline.verdict import RunState

_now = sa.func.now()
_OPEN_TO_JUDGE = sa.or_(
    sa.and_(
        runs.c.state == RunState.ESCALATED,
        sa.or_(runs.c.lease_until.is_(None), runs.c.lease_until <= _now),
    ),
    # put off by the judge: what screening found is there, so it need not be done again
    sa.and_(runs.c.state == RunState.DEFERRED, runs.c.due_at <= _now, runs.c.result_key.is_not(None)),
)


class Escalations:
    """The part of the ledger that judging workers claim by. Commit, release and renewal are those of `Claims`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def claim_escalated(self, ref: ObjectRef, *, decision_hash: str, worker: str, lease_s: float) -> ClaimResult:
        """Take the escalated run of (`ref`, `decision_hash`); `ref` must be resolved. One of many gets `Claimed`.

        Raises PermanentError(UNKNOWN_MESSAGE) where there is no such run.
        """
        same = sa.and_(videos.c.bucket == ref.bucket, videos.c.key == ref.key, videos.c.version == ref.version)
        with self.database.begin() as connection:
            taken = connection.execute(
                sa.update(runs)
                .where(runs.c.video_id == videos.c.id, same, runs.c.decision_hash == decision_hash, _OPEN_TO_JUDGE)
                .values(
                    state=RunState.ESCALATED,
                    worker=worker,
                    fence=runs.c.fence + 1,
                    attempts=runs.c.attempts + 1,
                    lease_until=_now + sa.func.make_interval(0, 0, 0, 0, 0, 0, lease_s),
                    due_at=None,
                    updated_at=_now,
                    reason=None,
                    detail=None,
                )
                .returning(
                    runs.c.id, runs.c.fence, runs.c.attempts, runs.c.faults, runs.c.trace_id, videos.c.uploaded_at
                )
            ).one_or_none()
            if taken is None:
                return _why_not(connection, same, decision_hash, ref)
            tenant = connection.scalar(
                sa.select(tenants.c.name).select_from(videos.join(uploads).join(tenants)).where(same)
            )
        return Claimed(taken.id, taken.fence, taken.attempts, taken.faults, taken.trace_id, tenant, taken.uploaded_at)


def _why_not(
    connection: sa.Connection, same: sa.ColumnElement[bool], decision_hash: str, ref: ObjectRef
) -> Busy | Settled:
    until = sa.case((runs.c.state == RunState.DEFERRED, runs.c.due_at), else_=runs.c.lease_until)
    row = connection.execute(
        sa.select(runs.c.id, runs.c.state, sa.extract("epoch", until - sa.func.clock_timestamp()).label("left_s"))
        .select_from(runs.join(videos))
        .where(same, runs.c.decision_hash == decision_hash)
    ).one_or_none()
    if row is None:
        raise PermanentError(Reason.UNKNOWN_MESSAGE, f"no run of {ref.url} under decision hash {decision_hash}")
    state = RunState(row.state)
    if state in {RunState.ESCALATED, RunState.DEFERRED}:
        return Busy(row.id, max(0.0, float(row.left_s or 0)))
    return Settled(row.id, state)
