"""Which runs have to be put on a queue: new ones in bulk, and those that got stuck."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

import sqlalchemy as sa

from pipeline.media import ObjectRef
from pipeline.runs import Lane, Registered, Standing
from pipeline.stores.database import Database
from pipeline.stores.schema import runs
from pipeline.verdict import RunState

_CHUNK = 1000

_GIVEN = """
WITH given AS (
    SELECT * FROM unnest(
        CAST(:buckets AS text[]), CAST(:keys AS text[]), CAST(:versions AS text[]),
        CAST(:sizes AS bigint[]), CAST(:traces AS text[])
    ) AS g (bucket, key, version, size_bytes, trace_id)
)
"""
# Sorted, so that two registrations of the same objects lock rows in the same order.
_ADD_VIDEOS = sa.text(
    _GIVEN
    + """
INSERT INTO videos (id, bucket, key, version, size_bytes, upload_id)
SELECT gen_random_uuid(), given.bucket, given.key, given.version, given.size_bytes, uploads.id
FROM given LEFT JOIN uploads USING (bucket, key)
ORDER BY given.bucket, given.key, given.version
ON CONFLICT DO NOTHING
"""
)
_ADD_RUNS = sa.text(
    _GIVEN
    + """
INSERT INTO runs (id, video_id, policy, decision_hash, state, lane, trace_id)
SELECT gen_random_uuid(), videos.id, :policy, :decision_hash, 'queued', :lane,
       coalesce(uploads.trace_id, given.trace_id)
FROM given
JOIN videos USING (bucket, key, version)
LEFT JOIN uploads ON uploads.id = videos.upload_id
ORDER BY videos.id
ON CONFLICT DO NOTHING
"""
)
_UNSENT = sa.text(
    _GIVEN
    + """
SELECT DISTINCT ON (runs.id) runs.id, runs.trace_id, given.bucket, given.key, given.version
FROM given
JOIN videos USING (bucket, key, version)
JOIN runs ON runs.video_id = videos.id AND runs.decision_hash = :decision_hash
WHERE runs.state = 'queued' AND runs.enqueued_at IS NULL
"""
)
_COUNT_WITHOUT_RUN = """
SELECT count(*) FROM (SELECT DISTINCT bucket, key, version FROM given) AS object
WHERE NOT EXISTS (
    SELECT FROM videos JOIN runs ON runs.video_id = videos.id AND runs.decision_hash = :decision_hash
    WHERE (videos.bucket, videos.key, videos.version) = (object.bucket, object.key, object.version)
)
"""
_UNKNOWN = sa.text(_GIVEN + _COUNT_WITHOUT_RUN)


class Backlog:
    """The part of the ledger that backfills and `reconcile` use."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def register(
        self,
        refs: Sequence[ObjectRef],
        *,
        policy: str,
        decision_hash: str,
        lane: Lane,
        trace_ids: Sequence[str],
    ) -> list[Registered]:
        """Make sure that every (resolved) object has a run, and return those whose message must be sent now.

        These are the new runs, and queued ones whose message was never said to be sent (`mark_enqueued`). Runs
        that are under way or settled are left out. In the order of `refs`; repeated objects count once.
        """
        registered: list[Registered] = []
        for chunk, traces in _chunks(refs, trace_ids):
            arrays = {
                "buckets": [ref.bucket for ref in chunk],
                "keys": [ref.key for ref in chunk],
                "versions": [ref.version for ref in chunk],
                "sizes": [ref.size_bytes for ref in chunk],
                "traces": list(traces),
            }
            run = {"policy": policy, "decision_hash": decision_hash, "lane": lane.value}
            with self.database.begin() as connection:
                connection.execute(_ADD_VIDEOS, arrays)
                connection.execute(_ADD_RUNS, arrays | run)
                rows = connection.execute(_UNSENT, arrays | {"decision_hash": decision_hash}).all()
            unsent = {(row.bucket, row.key, row.version): row for row in rows}
            for ref in chunk:
                row = unsent.pop((ref.bucket, ref.key, ref.version), None)
                if row is not None:
                    registered.append(Registered(row.id, ref, row.trace_id))
        return registered

    def without_run(self, refs: Sequence[ObjectRef], *, decision_hash: str) -> int:
        """How many of the (resolved) objects have no run yet. Changes nothing."""
        arrays = {
            "buckets": [ref.bucket for ref in refs],
            "keys": [ref.key for ref in refs],
            "versions": [ref.version for ref in refs],
            "sizes": [ref.size_bytes for ref in refs],
            "traces": [""] * len(refs),
        }
        with self.database.begin() as connection:
            count: int = connection.scalar(_UNKNOWN, arrays | {"decision_hash": decision_hash})
        return count

    def standings(self, run_ids: Iterable[UUID]) -> dict[UUID, Standing]:
        """Where each of these runs stands; those that do not exist are left out."""
        wanted = sa.select(runs.c.id, runs.c.state, runs.c.fence, runs.c.result_key).where(
            runs.c.id == sa.any_(sa.literal(list(run_ids), sa.ARRAY(sa.Uuid)))
        )
        with self.database.begin() as connection:
            rows = connection.execute(wanted).all()
        return {row.id: Standing(RunState(row.state), row.fence, row.result_key) for row in rows}

    def mark_enqueued(self, run_ids: Iterable[UUID]) -> None:
        """Remember that the messages of these runs were sent."""
        ids = list(run_ids)
        if not ids:
            return
        with self.database.begin() as connection:
            connection.execute(
                sa.update(runs)
                .where(runs.c.id == sa.any_(sa.literal(ids, sa.ARRAY(sa.Uuid))))
                .values(enqueued_at=sa.func.now())
            )


def _chunks(refs: Sequence[ObjectRef], trace_ids: Sequence[str]) -> Iterator[tuple[Sequence[ObjectRef], Sequence[str]]]:
    if len(refs) != len(trace_ids):
        raise ValueError(f"{len(refs)} objects but {len(trace_ids)} trace ids")
    for start in range(0, len(refs), _CHUNK):
        yield refs[start : start + _CHUNK], trace_ids[start : start + _CHUNK]
