"""A ledger and lanes that keep what backfill and reconcile put on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import uuid4

from pipeline.media import ObjectRef
from pipeline.runs import Lane, Registered
from pipeline.stores.ledger import Ledger
from pipeline.stores.queue import Queue
from pipeline.verdict import RunState
from tests.cascade.fakes import policy, rule

POLICY = policy({"cheap": {"q": rule("a")}})


def refs(count: int) -> list[ObjectRef]:
    return [ObjectRef("b", f"{n}.mp4", etag="e", size_bytes=n) for n in range(count)]


class Sink(Queue):
    """Keeps what is sent; raises `faults` one by one."""

    def __init__(self, *faults: Exception) -> None:
        self.name = "sink"
        self.sent: list[str] = []
        self.faults = list(faults)

    def send_many(self, bodies: Sequence[str], groups: Sequence[str] = ()) -> None:
        assert len(groups) == len(bodies)
        if self.faults:
            raise self.faults.pop(0)
        self.sent += bodies


class Records(Ledger):
    """Registers each version once, until it is marked as sent."""

    def __init__(self, counts: Sequence[Mapping[RunState, int]] = ()) -> None:
        self.known: dict[tuple[str, str, str], Registered] = {}
        self.enqueued: set[object] = set()
        self.batches: list[int] = []
        self.policies: list[str] = []
        self.answers = list(counts)

    def remember_policy(self, name: str, decision_hash: str, document: object) -> None:
        self.policies.append(decision_hash)

    def register(
        self, refs: Sequence[ObjectRef], *, policy: str, decision_hash: str, lane: Lane, trace_ids: Sequence[str]
    ) -> list[Registered]:
        assert len(set(trace_ids)) == len(refs)
        self.batches.append(len(refs))
        new = []
        for ref, trace_id in zip(refs, trace_ids, strict=True):
            run = self.known.setdefault((ref.bucket, ref.key, ref.version), Registered(uuid4(), ref, trace_id))
            if run.run_id not in self.enqueued:
                new.append(run)
        return new

    def mark_enqueued(self, run_ids: object) -> None:
        assert isinstance(run_ids, list)
        self.enqueued |= set(run_ids)

    def counts(
        self,
        states: Collection[RunState] = (),
        *,
        lane: Lane | None = None,
        decision_hash: str | None = None,
    ) -> dict[RunState, int]:
        assert (lane, decision_hash) == (Lane.BACKFILL, POLICY.decision_hash)
        return dict(self.answers.pop(0))
