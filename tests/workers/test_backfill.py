from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pipeline.errors import PermanentError, Reason, TransientError, UserError
from pipeline.events import parse_message
from pipeline.media import ObjectRef
from pipeline.runs import Lane
from pipeline.stores.objects import ObjectStore
from pipeline.stores.queue import Queues
from pipeline.verdict import RunState
from tests.workers.lanes import POLICY, Records, Sink, refs
from workers.backfill import BATCH, BackfillCounts, backfill, parse_s3_url, read_manifest, wait_until_settled
from workers.bootstrap import Services
from workers.enqueue import enqueue_new


class Store(ObjectStore):
    """Resolves keys to an ETag of their own; keys with `gone` are not there."""

    def __init__(self) -> None:
        self.resolved: list[str] = []

    def resolve(self, ref: ObjectRef) -> ObjectRef:
        self.resolved.append(ref.key)
        if "gone" in ref.key:
            raise PermanentError(Reason.NOT_FOUND, "gone")
        return replace(ref, etag=f"etag of {ref.key}")


class Fleet:
    def __init__(self, *faults: Exception) -> None:
        self.ledger, self.objects, self.sink = Records(), Store(), Sink(*faults)
        self.services = Services(self.ledger, self.objects, Queues(Sink(), self.sink, Sink(), Sink()))
        self.slept_s: list[float] = []

    def backfill(self, refs: Sequence[ObjectRef], rate_per_s: float | None = None) -> BackfillCounts:
        return backfill(self.services, POLICY, refs, rate_per_s=rate_per_s, sleep=self.slept_s.append)

    @property
    def sent(self) -> list[ObjectRef]:
        return [event.ref for body in self.sink.sent for event in parse_message(body).events]


def test_everything_is_enqueued_once_in_batches_under_the_policys_hash() -> None:
    fleet = Fleet()
    counts = fleet.backfill(refs(BATCH + 5))
    assert (counts.seen, counts.enqueued, counts.missing, counts.skipped) == (BATCH + 5, BATCH + 5, 0, 0)
    assert fleet.ledger.batches == [BATCH, 5]
    assert fleet.sent == refs(BATCH + 5)
    events = [parse_message(body).events[0] for body in fleet.sink.sent]
    assert {event.decision_hash for event in events} == {POLICY.decision_hash}
    assert len({event.trace_id for event in events}) == BATCH + 5
    assert fleet.ledger.policies == [POLICY.decision_hash]
    assert fleet.slept_s == []


def test_a_second_backfill_enqueues_nothing() -> None:
    fleet = Fleet()
    fleet.backfill(refs(3))
    counts = fleet.backfill(refs(4))
    assert (counts.seen, counts.enqueued, counts.skipped) == (4, 1, 3)
    assert len(fleet.sent) == 4


def test_what_was_registered_but_not_sent_is_sent_by_the_next_call() -> None:
    fleet = Fleet(TransientError(Reason.QUEUE_UNAVAILABLE, "down"))
    with pytest.raises(TransientError):
        fleet.backfill(refs(3))
    assert fleet.sent == []
    assert fleet.backfill(refs(3)).enqueued == 3
    assert fleet.sent == refs(3)


def test_unresolved_objects_are_resolved_and_those_that_are_gone_are_counted() -> None:
    fleet = Fleet()
    named = [ObjectRef("b", key) for key in ("x", "gone", "y", "also gone")]
    counts = fleet.backfill([*named, ObjectRef("b", "z", version_id="v1")])
    assert (counts.seen, counts.enqueued, counts.missing, counts.skipped) == (5, 3, 2, 0)
    assert fleet.objects.resolved == ["x", "gone", "y", "also gone"]
    assert [ref.version for ref in fleet.sent] == ["e:etag of x", "e:etag of y", "v:v1"]


def test_an_object_listed_twice_is_skipped_and_not_missing() -> None:
    fleet = Fleet()
    counts = fleet.backfill([ObjectRef("b", "x")] * 3)
    assert (counts.seen, counts.enqueued, counts.missing, counts.skipped) == (3, 1, 0, 2)


@pytest.mark.parametrize(("rate_per_s", "slept_s"), [(2, [1.0, 1.0, 0.5]), (0.5, [2.0] * 5), (1000, [0.005])])
def test_a_rate_is_kept_by_sleeping_after_each_batch(rate_per_s: float, slept_s: list[float]) -> None:
    fleet = Fleet()
    fleet.backfill(refs(5), rate_per_s)
    assert fleet.slept_s == pytest.approx(slept_s)
    fleet.slept_s.clear()
    fleet.backfill(refs(5), rate_per_s)  # nothing new: nothing to wait for
    assert fleet.slept_s == []


def test_objects_are_taken_from_their_source_as_they_are_needed() -> None:
    taken = 0

    def endless() -> Iterator[ObjectRef]:
        nonlocal taken
        while True:
            taken += 1
            yield ObjectRef("b", f"{taken}", etag="e")

    def stop(_counts: BackfillCounts) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill(Fleet().services, POLICY, endless(), progress=stop)
    assert taken == BATCH


def test_nothing_to_enqueue_sends_nothing() -> None:
    ledger, sink = Records(), Sink(AssertionError("nothing is to be sent"))
    assert enqueue_new(ledger, sink, POLICY, Lane.UPLOADS, []) == 0


def test_waiting_ends_when_no_run_needs_a_machine_any_more() -> None:
    ledger = Records(
        [
            {RunState.QUEUED: 2, RunState.PROCESSING: 1, RunState.DECIDED: 1},
            {RunState.ESCALATED: 1, RunState.DEFERRED: 1, RunState.DECIDED: 2},
            {RunState.DECIDED: 2, RunState.IN_REVIEW: 1, RunState.REJECTED: 1},
        ]
    )
    seen = list[tuple[int, int]]()
    slept_s = list[float]()
    wait_until_settled(ledger, POLICY.decision_hash, lambda done, all_: seen.append((done, all_)), sleep=slept_s.append)
    assert seen == [(1, 4), (2, 4), (4, 4)]
    assert len(slept_s) == 2


def test_a_manifest_names_objects_by_url_or_json_and_may_hold_comments() -> None:
    lines = [
        "# videos of May\n",
        "\n",
        "s3://b/a b+%20ü.mp4\n",
        "  s3://b/deep/x.mp4\r\n",
        json.dumps({"bucket": "b", "key": " # odd\n.mp4", "version_id": "v1", "more": 1}),
        json.dumps({"bucket": "b", "key": "k", "version_id": None}),
    ]
    assert list(read_manifest(lines, origin="m")) == [
        ObjectRef("b", "a b+%20ü.mp4"),
        ObjectRef("b", "deep/x.mp4"),
        ObjectRef("b", " # odd\n.mp4", version_id="v1"),
        ObjectRef("b", "k"),
    ]


@pytest.mark.parametrize("version", ["null", "", None])
def test_a_manifests_null_version_is_looked_up_so_that_it_is_the_same_video_as_its_event(version: str | None) -> None:
    (ref,) = read_manifest([json.dumps({"bucket": "b", "key": "k", "version_id": version})], origin="m")
    assert not ref.is_resolved


@pytest.mark.parametrize(
    "line",
    [
        "b/key",
        "s3://b",
        "s3://b/",
        "s3:///key",
        "https://b/key",
        "{",
        "{}",
        '{"bucket": "b"}',
        '{"bucket": "", "key": "k"}',
        '{"bucket": "b", "key": ""}',
        '{"bucket": "b", "key": 3}',
        '{"bucket": ["b"], "key": "k"}',
        '{"bucket": "b", "key": "k", "version_id": 3}',
        '{"a":' * 50_000,
    ],
)
def test_a_bad_line_of_a_manifest_is_named(line: str) -> None:
    with pytest.raises(UserError, match=r"^bad_input: m\.txt:2: neither s3://BUCKET/KEY nor ") as caught:
        list(read_manifest(["s3://b/good", line], origin="m.txt"))
    assert len(caught.value.detail) < 200


@pytest.mark.parametrize(
    ("url", "parts"), [("s3://b", ("b", "")), ("s3://b/", ("b", "")), ("s3://b/p/q r", ("b", "p/q r"))]
)
def test_an_address_is_split_into_bucket_and_prefix(url: str, parts: tuple[str, str]) -> None:
    assert parse_s3_url(url) == parts


@pytest.mark.parametrize("url", ["", "b", "b/p", "s3:/b", "s3://", "s3:///p", "gs://b/p"])
def test_what_is_no_address_is_the_callers_mistake(url: str) -> None:
    with pytest.raises(UserError, match="write s3://BUCKET/PREFIX"):
        parse_s3_url(url)
