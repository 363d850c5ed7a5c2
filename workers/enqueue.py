"""Puts runs on a lane: recorded in the ledger first, then sent, then marked as sent.

Whoever is interrupted between the steps loses nothing: what was recorded but not marked is sent by the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from pipeline.cascade.policy import Policy
from pipeline.events import VideoMessage
from pipeline.media import ObjectRef
from pipeline.runs import Lane, Registered
from pipeline.stores.ledger import Ledger
from pipeline.stores.queue import Queue
from workers.fairness import tenant_of


def enqueue_new(ledger: Ledger, queue: Queue, policy: Policy, lane: Lane, refs: Sequence[ObjectRef]) -> int:
    """Enqueue those of `refs` (resolved) that have no run under `policy` yet; how many that were."""
    registered = ledger.register(
        refs,
        policy=policy.name,
        decision_hash=policy.decision_hash,
        lane=lane,
        trace_ids=[uuid4().hex for _ in refs],
    )
    send(ledger, queue, registered, policy.decision_hash)
    return len(registered)


def send(ledger: Ledger, queue: Queue, registered: Sequence[Registered], decision_hash: str) -> None:
    """Send a message for each run, which its decision hash names, and mark the runs as sent."""
    if not registered:
        return
    bodies = [
        VideoMessage.of(run.ref, decision_hash=decision_hash, trace_id=run.trace_id).model_dump_json(exclude_none=True)
        for run in registered
    ]
    queue.send_many(bodies, [tenant_of(run.ref.key) for run in registered])
    ledger.mark_enqueued([run.run_id for run in registered])
