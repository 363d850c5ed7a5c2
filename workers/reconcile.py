"""Reconcile: find what got lost on the way and put it right.

Objects without a run and runs that stopped moving are enqueued; artifacts that belong to no result are deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from uuid import UUID

from pipeline.cascade.policy import Policy
from pipeline.runs import Lane, Registered, RunView
from pipeline.verdict import RunState
from workers.backfill import BATCH
from workers.bootstrap import Services
from workers.enqueue import enqueue_new, send
from workers.orphans import orphans

_MOST_COUNTED = 100_000


@dataclass(slots=True)
class ReconcileCounts:
    """What was found: objects looked at, those that had no run, runs that had stopped moving, and objects among the
    artifacts that belong to no result."""

    objects: int = 0
    without_run: int = 0
    stale_runs: int = 0
    artifacts: int = 0
    orphans: int = 0


def reconcile(
    services: Services,
    policy: Policy,
    *,
    bucket: str,
    prefix: str,
    older_than_s: float,
    artifacts_bucket: str | None = None,
    dry_run: bool = False,
    progress: Callable[[ReconcileCounts], None] = lambda _: None,
) -> ReconcileCounts:
    """Enqueue every object in `bucket` that is older than `older_than_s` and has no run under `policy`, and every
    run that has not moved for as long. Delete what lies in `artifacts_bucket` for as long and belongs to no result.

    Running it at any time, twice or beside itself is harmless: a message too many finds its run settled. With
    `dry_run` all is counted and nothing changed.
    """
    counts = ReconcileCounts()
    if not dry_run:
        services.ledger.remember_policy(policy.name, policy.decision_hash, policy.document())
    _runs(services, counts, older_than_s, dry_run=dry_run)
    progress(counts)
    if artifacts_bucket is not None:
        _orphans(services, counts, artifacts_bucket, older_than_s, dry_run=dry_run)
        progress(counts)
    before = datetime.now(UTC) - timedelta(seconds=older_than_s)
    settled_objects = iter(services.objects.list(bucket, prefix, modified_before=before))
    while refs := list(islice(settled_objects, BATCH)):
        counts.objects += len(refs)
        if dry_run:
            counts.without_run += services.ledger.without_run(refs, decision_hash=policy.decision_hash)
        else:
            counts.without_run += enqueue_new(services.ledger, services.queues.uploads, policy, Lane.UPLOADS, refs)
        progress(counts)
    return counts


def _runs(services: Services, counts: ReconcileCounts, older_than_s: float, *, dry_run: bool) -> None:
    if dry_run:
        counts.stale_runs = len(services.ledger.stale_runs(older_than_s, limit=_MOST_COUNTED))
        return
    lanes = services.queues.lanes
    sent: set[UUID] = set()
    while stale := [run for run in services.ledger.stale_runs(older_than_s, limit=BATCH) if run.run_id not in sent]:
        sent |= {run.run_id for run in stale}
        ordered = sorted(stale, key=lambda run: (_lane_of(run).value, run.decision_hash))
        for (lane, decision_hash), runs in groupby(ordered, key=lambda run: (_lane_of(run), run.decision_hash)):
            registered = [Registered(run.run_id, run.ref, run.trace_id) for run in runs]
            send(services.ledger, lanes[lane], registered, decision_hash)
        counts.stale_runs += len(stale)


def _lane_of(run: RunView) -> Lane:
    """Where the run's message belongs: with the judging workers, once screening has kept what it found."""
    is_screened = run.state is RunState.ESCALATED or (run.state is RunState.DEFERRED and run.result_key is not None)
    return Lane.ESCALATION if is_screened else run.lane


def _orphans(services: Services, counts: ReconcileCounts, bucket: str, older_than_s: float, *, dry_run: bool) -> None:
    for looked_at, found in orphans(services.ledger, services.objects, bucket, older_than_s=older_than_s):
        counts.artifacts += looked_at
        counts.orphans += len(found)
        if found and not dry_run:
            services.objects.delete(found)
