"""Who may work on a run: claims with a lease and a fencing number, and what an attempt may write under them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from pipeline.costs import StageCost
from pipeline.errors import LeaseLostError, Reason
from pipeline.media import ObjectRef
from pipeline.runs import Busy, Claimed, ClaimResult, Commit, Lane, Settled
from pipeline.stores.database import Database
from pipeline.stores.schema import runs, stage_costs, uploads, verdicts, videos
from pipeline.verdict import Answer, CascadeOutcome, RunState

_now = sa.func.now()
_CLAIM = sa.text(
    """
WITH upload AS (
    SELECT uploads.id, uploads.trace_id, tenants.name AS tenant
    FROM uploads JOIN tenants ON tenants.id = uploads.tenant_id
    WHERE uploads.bucket = :bucket AND uploads.key = :key
), video AS (
    INSERT INTO videos AS known (id, bucket, key, version, size_bytes, uploaded_at, upload_id)
    VALUES (
        gen_random_uuid(), :bucket, :key, :version, CAST(:size_bytes AS bigint),
        CAST(:event_at AS timestamptz), (SELECT id FROM upload)
    )
    ON CONFLICT (bucket, key, version) DO UPDATE SET
        size_bytes = coalesce(known.size_bytes, excluded.size_bytes),
        uploaded_at = coalesce(known.uploaded_at, excluded.uploaded_at),
        upload_id = coalesce(known.upload_id, excluded.upload_id)
    RETURNING id, uploaded_at
), run AS (
    INSERT INTO runs AS known (
        id, video_id, policy, decision_hash, state, lane, trace_id, worker, fence, attempts, lease_until, enqueued_at
    )
    SELECT
        gen_random_uuid(), video.id, :policy, :decision_hash, 'processing', :lane,
        coalesce((SELECT trace_id FROM upload), :trace_id), :worker, 1, 1,
        now() + make_interval(secs => :lease_s), now()
    FROM video
    ON CONFLICT (video_id, decision_hash) DO UPDATE SET
        state = 'processing', lane = excluded.lane, worker = excluded.worker, fence = known.fence + 1,
        attempts = known.attempts + 1, lease_until = excluded.lease_until, due_at = NULL,
        enqueued_at = coalesce(known.enqueued_at, now()), updated_at = now(), reason = NULL, detail = NULL
    WHERE known.state = 'queued'
        OR (known.state = 'deferred' AND known.due_at <= now())
        OR (known.state = 'processing' AND known.lease_until <= now())
    RETURNING id, fence, attempts, faults, trace_id
)
SELECT
    video.id AS video_id, video.uploaded_at, run.id, run.fence, run.attempts, run.faults, run.trace_id,
    (SELECT tenant FROM upload) AS tenant
FROM video LEFT JOIN run ON true
"""
)
"""One statement: on a busy worker the round trips of four cost more than their work."""
_RENEW = sa.text(
    """
UPDATE runs SET lease_until = now() + make_interval(secs => :lease_s), updated_at = now()
FROM (
    SELECT runs.id FROM runs
    JOIN unnest(CAST(:ids AS uuid[]), CAST(:fences AS bigint[])) AS held (id, fence) USING (id, fence)
    WHERE state IN ('processing', 'escalated') AND lease_until > now()
    ORDER BY runs.id FOR UPDATE OF runs
) AS ours
WHERE runs.id = ours.id
RETURNING runs.id, runs.fence
"""
)
"""Locks in the order of ids, so that two workers who believe they hold the same runs cannot deadlock."""


_PROBE = sa.text(
    "CREATE TEMPORARY TABLE probe ON COMMIT DROP AS SELECT repeat(md5(n::text), 64) FROM generate_series(1, 256) AS n"
)


_LOST = 1000
"""Position of the row of what came to nothing, beyond all that a commit under the same fence may write."""


class Claims:
    """The part of the ledger that workers write to. Each method is one transaction on the database's clock."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def claim(
        self,
        ref: ObjectRef,
        *,
        policy: str,
        decision_hash: str,
        lane: Lane,
        worker: str,
        lease_s: float,
        trace_id: str,
        event_at: datetime | None,
    ) -> ClaimResult:
        """Take the run of (`ref`, `decision_hash`), creating what is missing; `ref` must be resolved.

        However many workers claim at once, one gets `Claimed`. A video that came by an upload takes over its
        tenant and its trace id. `event_at` is when the object was created, where the message says so.
        """
        with self.database.begin() as connection:
            row = connection.execute(
                _CLAIM,
                {
                    "bucket": ref.bucket,
                    "key": ref.key,
                    "version": ref.version,
                    "size_bytes": ref.size_bytes,
                    "event_at": event_at,
                    "policy": policy,
                    "decision_hash": decision_hash,
                    "lane": lane.value,
                    "worker": worker,
                    "lease_s": lease_s,
                    "trace_id": trace_id,
                },
            ).one()
            if row.id is None:
                return _why_not(connection, row.video_id, decision_hash)
        return Claimed(row.id, row.fence, row.attempts, row.faults, row.trace_id, row.tenant, row.uploaded_at)

    def renew(self, run_id: UUID, fence: int, lease_s: float) -> None:
        """Keep the run for `lease_s` from now; LeaseLostError once it is not ours any more."""
        with self.database.begin() as connection:
            _write(connection, run_id, fence, lease_until=_in(lease_s))

    def renew_many(self, held: Sequence[tuple[UUID, int]], lease_s: float) -> set[tuple[UUID, int]]:
        """Keep several runs, each by its fence, for `lease_s` from now; those that are still ours."""
        with self.database.begin() as connection:
            rows = connection.execute(
                _RENEW, {"ids": [run for run, _ in held], "fences": [fence for _, fence in held], "lease_s": lease_s}
            ).all()
        return {(row.id, row.fence) for row in rows}

    def probe(self) -> None:
        """Write as the work does, so that a database that is full or may only be read is seen; nothing is kept."""
        with self.database.begin() as connection:
            connection.execute(_PROBE)

    def commit(self, run_id: UUID, fence: int, commit: Commit) -> float | None:
        """Write how the attempt ended, all of it or nothing; LeaseLostError where the run is not ours (any more).

        Returns the seconds from the upload to now, None where the time of the upload is not known.
        """
        with self.database.begin() as connection:
            _write(
                connection,
                run_id,
                fence,
                state=commit.state,
                lease_until=None,
                decided_at=_now if commit.state is RunState.DECIDED else None,
                reason=commit.reason,
                detail=_storable(commit.detail),
                result_key=commit.result_key,
                money_nano=runs.c.money_nano + commit.money_nano,
                currency=sa.func.coalesce(commit.currency, runs.c.currency),
                cpu_s=runs.c.cpu_s + commit.cpu_s,
                coverage=commit.coverage,
                warnings=[_storable(warning) for warning in commit.warnings],
                **(
                    {"attempts": 0, "faults": 0} if commit.state is RunState.ESCALATED else {}
                ),  # judging counts its own
            )
            if commit.outcome is not None:
                _write_verdicts(connection, run_id, commit.outcome)
            if commit.costs:
                _write_costs(connection, run_id, fence, commit.currency, commit.costs)
            age = sa.extract("epoch", _now - videos.c.uploaded_at)
            waited_s = connection.execute(
                sa.select(age).select_from(runs.join(videos)).where(runs.c.id == run_id)
            ).scalar_one()
        return None if waited_s is None else max(0.0, float(waited_s))

    def charge(self, run_id: UUID, fence: int, currency: str, cost: StageCost) -> None:
        """Add what an attempt cost that came to nothing, once an attempt; LeaseLostError where the run is not ours."""
        with self.database.begin() as connection:
            money, cpu_s = runs.c.money_nano + cost.money_nano, runs.c.cpu_s + cost.cpu_s
            _write(connection, run_id, fence, money_nano=money, cpu_s=cpu_s)
            _write_costs(connection, run_id, fence, currency, (cost,), first=_LOST)

    def defer(self, run_id: UUID, fence: int, *, reason: Reason, detail: str, due_in_s: float) -> None:
        """Put the run off: `reconcile` sends it again once `due_in_s` have passed. The attempt does not count."""
        with self.database.begin() as connection:
            _write(
                connection,
                run_id,
                fence,
                state=RunState.DEFERRED,
                lease_until=None,
                due_at=_in(due_in_s),
                attempts=runs.c.attempts - 1,
                reason=reason,
                detail=_storable(detail),
            )

    def release(self, run_id: UUID, fence: int, *, reason: Reason, detail: str, fault: bool, hidden_s: float) -> None:
        """Give the run back as queued, or as escalated where it was; its message is hidden for `hidden_s`.

        A `fault` of the video's is counted; an attempt that failed by somebody else's fault does not count.
        """
        with self.database.begin() as connection:
            _write(
                connection,
                run_id,
                fence,
                state=sa.case((runs.c.state == RunState.ESCALATED, RunState.ESCALATED), else_=RunState.QUEUED),
                lease_until=None,
                due_at=_in(hidden_s),
                reason=reason,
                detail=_storable(detail),
                **({"faults": runs.c.faults + 1} if fault else {"attempts": runs.c.attempts - 1}),
            )


def _why_not(connection: sa.Connection, video_id: UUID, decision_hash: str) -> Busy | Settled:
    until = sa.case((runs.c.state == RunState.DEFERRED, runs.c.due_at), else_=runs.c.lease_until)
    row = connection.execute(
        sa.select(
            runs.c.id, runs.c.state, sa.extract("epoch", until - sa.func.clock_timestamp()).label("left_s")
        ).where(runs.c.video_id == video_id, runs.c.decision_hash == decision_hash)
    ).one()
    state = RunState(row.state)
    if state in {RunState.PROCESSING, RunState.DEFERRED, RunState.QUEUED}:
        # QUEUED: released between our two looks; the message may come back at once.
        return Busy(row.id, max(0.0, float(row.left_s or 0)))
    return Settled(row.id, state)


def _write(connection: sa.Connection, run_id: UUID, fence: int, **values: Any) -> None:
    """Change a run under its fence while its lease lives; else LeaseLostError."""
    ours = sa.and_(
        runs.c.id == run_id,
        runs.c.fence == fence,
        runs.c.state.in_((RunState.PROCESSING, RunState.ESCALATED)),
        runs.c.lease_until > _now,
    )
    changed = connection.execute(sa.update(runs).where(ours).values(updated_at=_now, **values))
    if changed.rowcount != 1:
        raise LeaseLostError(f"run {run_id} is no longer held under fence {fence}")


def _write_verdicts(connection: sa.Connection, run_id: UUID, outcome: CascadeOutcome) -> None:
    """The verdicts that stand, instead of any that an earlier stage left.

    While a VLM is to judge, doubts have none yet, and nobody is asked about the other questions either.
    """
    doubts = {doubt.question for doubt in outcome.doubts}
    rows = [
        {
            "run_id": run_id,
            "question": verdict.question,
            "position": position,
            "answer": verdict.answer,
            "score": verdict.score,
            "stage": verdict.stage,
            "model": verdict.model,
            "weights_sha256": verdict.weights_sha256,
            "owner": verdict.owner,
            "evidence": list(verdict.evidence),
            "reason": verdict.reason,
        }
        for position, verdict in enumerate(outcome.verdicts)
        if not (doubts and (verdict.question in doubts or verdict.answer is Answer.REVIEW))
    ]
    if rows:
        new = insert(verdicts)
        changed = {name: new.excluded[name] for name in rows[0] if name not in {"run_id", "question"}}
        connection.execute(new.on_conflict_do_update(index_elements=["run_id", "question"], set_=changed), rows)


def _write_costs(
    connection: sa.Connection,
    run_id: UUID,
    fence: int,
    currency: str | None,
    costs: Sequence[StageCost],
    first: int = 0,
) -> None:
    policy, tenant_id = connection.execute(
        sa.select(runs.c.policy, uploads.c.tenant_id)
        .select_from(runs.join(videos).outerjoin(uploads))
        .where(runs.c.id == run_id)
    ).one()
    whose = {"run_id": run_id, "fence": fence, "policy": policy, "tenant_id": tenant_id, "currency": currency}
    rows = [whose | asdict(cost) | {"position": position} for position, cost in enumerate(costs, first)]
    connection.execute(sa.insert(stage_costs), rows)


def _in(seconds: float) -> sa.ColumnElement[datetime]:
    return _now + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _storable(text: str | None) -> str | None:
    """Text from a damaged file may hold what PostgreSQL cannot: NUL bytes, halves of surrogate pairs."""
    return text and text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
