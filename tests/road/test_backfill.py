"""Backfill and reconcile, from the command's functions to decided runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.media import ObjectRef
from pipeline.runs import Claimed, Lane
from pipeline.verdict import RunState
from tests.road.conftest import BLUE, RED, Fleet, colour_clip
from tests.road.test_road import drain
from workers.backfill import BackfillCounts, backfill, parse_s3_url, read_manifest
from workers.reconcile import ReconcileCounts, reconcile


def _put(fleet: Fleet, tmp_path: Path, count: int, prefix: str = "old") -> list[ObjectRef]:
    """`count` small videos whose events were thrown away."""
    clips = [colour_clip(tmp_path / "red.mp4", RED, frames=4), colour_clip(tmp_path / "blue.mp4", BLUE, frames=4)]
    for number in range(count):
        fleet.upload(clips[number % 2], f"{prefix}/{number:03d}.mp4")
    drain(fleet, count)
    return list(fleet.services.objects.list(fleet.stack.originals, f"{prefix}/"))


def test_a_prefix_of_200_objects_is_decided_and_skipped_the_second_time(fleet: Fleet, tmp_path: Path) -> None:
    refs = _put(fleet, tmp_path, 200)
    seen: list[int] = []
    counts = backfill(fleet.services, fleet.policy, refs, progress=lambda now: seen.append(now.seen))
    assert (counts.seen, counts.enqueued, counts.skipped) == (200, 200, 0)
    assert seen == [100, 200]
    again = backfill(fleet.services, fleet.policy, refs)
    assert (again.enqueued, again.skipped) == (0, 200), "in flight is not enqueued again"
    with fleet.worker():
        runs = fleet.wait_until_settled(200, timeout_s=120)
        fleet.wait_until_empty()
    assert {run.state for run in runs} == {RunState.DECIDED}
    assert {run.fence for run in runs} == {1}
    assert backfill(fleet.services, fleet.policy, refs).enqueued == 0


def test_an_interrupted_backfill_goes_on_where_it_was(fleet: Fleet, tmp_path: Path) -> None:
    refs = _put(fleet, tmp_path, 30)

    def interrupted() -> Iterator[ObjectRef]:
        yield from refs[:20]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill(fleet.services, fleet.policy, interrupted(), rate_per_s=10, sleep=lambda _: None)
    counts = backfill(fleet.services, fleet.policy, refs)
    assert (counts.enqueued, counts.skipped) == (10, 20)
    depth = fleet.services.queues.backfill.depth()
    assert depth["visible"] == 30


def test_a_backfill_that_died_between_recording_and_sending_is_completed(fleet: Fleet, tmp_path: Path) -> None:
    refs = _put(fleet, tmp_path, 3)
    ledger = fleet.services.ledger
    ledger.register(
        refs,
        policy=fleet.policy.name,
        decision_hash=fleet.policy.decision_hash,
        lane=Lane.BACKFILL,
        trace_ids=["t"] * 3,
    )
    assert backfill(fleet.services, fleet.policy, refs).enqueued == 3


def test_the_rate_is_kept(fleet: Fleet, tmp_path: Path) -> None:
    refs = _put(fleet, tmp_path, 10)
    slept: list[float] = []
    backfill(fleet.services, fleet.policy, refs, rate_per_s=5, sleep=slept.append)
    assert sum(slept) == pytest.approx(2.0)


def test_an_object_listed_twice_is_one_run_and_a_missing_one_is_counted(fleet: Fleet, tmp_path: Path) -> None:
    (ref,) = _put(fleet, tmp_path, 1)
    bare = ObjectRef(ref.bucket, ref.key)
    counts = backfill(fleet.services, fleet.policy, [bare, bare, ObjectRef(ref.bucket, "nothing.mp4")])
    assert (counts.enqueued, counts.missing) == (1, 1)


def test_reconcile_finds_objects_without_events_and_runs_of_a_dead_worker(fleet: Fleet, tmp_path: Path) -> None:
    refs = _put(fleet, tmp_path, 25)
    dead, lost = refs[:5], refs[5:]
    for ref in dead:
        claim = fleet.services.ledger.claim(
            ref,
            policy=fleet.policy.name,
            decision_hash=fleet.policy.decision_hash,
            lane=Lane.UPLOADS,
            worker="dead",
            lease_s=0.01,
            trace_id="trace",
            event_at=None,
        )
        assert isinstance(claim, Claimed)
    counts = _reconcile(fleet, older_than_s=0.05)
    assert (counts.stale_runs, counts.without_run) == (len(dead), len(lost))
    with fleet.worker():
        runs = fleet.wait_until_settled(25)
        fleet.wait_until_empty()
    assert {run.state for run in runs} == {RunState.DECIDED}
    assert sorted(run.fence for run in runs) == [1] * len(lost) + [2] * len(dead)
    after = _reconcile(fleet, older_than_s=0.05)
    assert (after.stale_runs, after.without_run) == (0, 0)


def _reconcile(fleet: Fleet, *, older_than_s: float) -> ReconcileCounts:
    time.sleep(1.1)  # S3's times are whole seconds
    return reconcile(fleet.services, fleet.policy, bucket=fleet.stack.originals, prefix="", older_than_s=older_than_s)


def test_a_manifest_names_objects_by_url_or_json() -> None:
    lines = ["# a comment", "", "s3://b/k 1.mp4", '{"bucket": "b", "key": "k2", "version_id": "v"}']
    assert list(read_manifest(lines, origin="m")) == [ObjectRef("b", "k 1.mp4"), ObjectRef("b", "k2", version_id="v")]


@pytest.mark.parametrize(
    "line", ["k.mp4", "s3://", "s3://b/", "{", '{"bucket": "b"}', '{"bucket": 1, "key": "k"}', "http://b/k"]
)
def test_a_wrong_manifest_line_is_named(line: str) -> None:
    with pytest.raises(UserError, match="m:2: "):
        list(read_manifest(["s3://b/k", line], origin="m"))


@pytest.mark.parametrize("url", ["bucket/key", "s3:/b", "s3:///k", ""])
def test_an_address_that_is_no_s3_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="s3://BUCKET/PREFIX"):
        parse_s3_url(url)


def test_counts_add_up() -> None:
    assert BackfillCounts(seen=10, enqueued=3, missing=2).skipped == 5
