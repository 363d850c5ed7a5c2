from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from pipeline.events import parse_message
from pipeline.media import ObjectRef
from pipeline.runs import Lane, RunView
from pipeline.stores.objects import ObjectStore
from pipeline.stores.queue import Queues
from pipeline.verdict import RunState
from tests.workers.lanes import POLICY, Records, Sink, refs
from workers.backfill import BATCH
from workers.bootstrap import Services
from workers.reconcile import ReconcileCounts, reconcile

OTHER_HASH = "f" * 64


def run_view(key: str, lane: Lane, decision_hash: str, state: RunState = RunState.QUEUED) -> RunView:
    now = datetime.now(UTC)
    return RunView(
        run_id=uuid4(),
        bucket="b",
        key=key,
        version="v:v1",
        tenant=None,
        policy="p",
        decision_hash=decision_hash,
        state=state,
        lane=lane,
        attempts=1,
        faults=0,
        fence=1,
        trace_id=f"trace of {key}",
        created_at=now,
        updated_at=now,
        decided_at=None,
        lease_until=None,
        reason=None,
        detail=None,
        result_key=None,
        money_nano=0,
        currency=None,
    )


class Ledger(Records):
    """Names each stale run until it is marked as sent, or for ever where `forgetful`."""

    def __init__(self, stale: Sequence[RunView] = (), *, forgetful: bool = False) -> None:
        super().__init__()
        self.stale = list(stale)
        self.forgetful = forgetful

    def stale_runs(self, older_than_s: float, limit: int) -> list[RunView]:
        assert older_than_s == 60
        return [run for run in self.stale if self.forgetful or run.run_id not in self.enqueued][:limit]


class Listing(ObjectStore):
    def __init__(self, found: Sequence[ObjectRef] = ()) -> None:
        self.found = found
        self.before: datetime | None = None

    def list(self, bucket: str, prefix: str = "", *, modified_before: datetime | None = None) -> Iterator[ObjectRef]:
        assert (bucket, prefix) == ("originals", "clips/")
        self.before = modified_before
        return iter(self.found)


class Fleet:
    def __init__(self, ledger: Ledger, found: Sequence[ObjectRef] = ()) -> None:
        self.ledger, self.objects, self.uploads, self.backfill = ledger, Listing(found), Sink(), Sink()
        self.services = Services(ledger, self.objects, Queues(self.uploads, self.backfill, Sink(), Sink()))

    def reconcile(self) -> ReconcileCounts:
        return reconcile(self.services, POLICY, bucket="originals", prefix="clips/", older_than_s=60)


def test_objects_without_a_run_go_to_the_upload_lane_and_those_with_one_do_not() -> None:
    fleet = Fleet(Ledger(), refs(BATCH + 2))
    counts = fleet.reconcile()
    assert (counts.objects, counts.without_run, counts.stale_runs) == (BATCH + 2, BATCH + 2, 0)
    assert len(fleet.uploads.sent) == BATCH + 2
    again = fleet.reconcile()
    assert (again.objects, again.without_run) == (BATCH + 2, 0)


def test_young_objects_are_left_to_their_own_events() -> None:
    fleet = Fleet(Ledger())
    fleet.reconcile()
    assert fleet.objects.before is not None
    age = datetime.now(UTC) - fleet.objects.before
    assert timedelta(seconds=60) <= age < timedelta(seconds=70)


def test_stale_runs_go_to_their_own_lane_under_their_own_hash_version_and_trace() -> None:
    stale = [
        run_view("u", Lane.UPLOADS, POLICY.decision_hash),
        run_view("x", Lane.BACKFILL, OTHER_HASH, RunState.PROCESSING),
        run_view("v", Lane.UPLOADS, OTHER_HASH, RunState.DEFERRED),
        run_view("w", Lane.UPLOADS, POLICY.decision_hash),
    ]
    fleet = Fleet(Ledger(stale))
    assert fleet.reconcile().stale_runs == 4
    sent = [parse_message(body).events[0] for body in fleet.uploads.sent]
    assert {(event.ref.key, event.decision_hash) for event in sent} == {
        ("u", POLICY.decision_hash),
        ("v", OTHER_HASH),
        ("w", POLICY.decision_hash),
    }
    assert {event.trace_id for event in sent} == {"trace of u", "trace of v", "trace of w"}
    assert {event.ref.version for event in sent} == {"v:v1"}
    (other,) = [parse_message(body).events[0] for body in fleet.backfill.sent]
    assert (other.ref.key, other.decision_hash) == ("x", OTHER_HASH)
    assert fleet.ledger.enqueued == {run.run_id for run in stale}


def test_more_stale_runs_than_a_batch_are_all_sent() -> None:
    stale = [run_view(str(n), Lane.UPLOADS, OTHER_HASH) for n in range(2 * BATCH + 1)]
    fleet = Fleet(Ledger(stale))
    assert fleet.reconcile().stale_runs == 2 * BATCH + 1
    assert len(fleet.uploads.sent) == 2 * BATCH + 1


def test_runs_that_stay_stale_are_sent_once_and_not_for_ever() -> None:
    fleet = Fleet(Ledger([run_view(str(n), Lane.UPLOADS, OTHER_HASH) for n in range(3)], forgetful=True))
    assert fleet.reconcile().stale_runs == 3
    assert len(fleet.uploads.sent) == 3
