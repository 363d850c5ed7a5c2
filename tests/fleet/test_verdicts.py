"""The judge notices each kind of fault: a check that cannot fail proves nothing."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from pipeline.errors import Reason
from tests.fleet import chaos, drain, footage, processes
from tests.fleet.chaos import Plan
from tests.fleet.footage import Clip
from tests.fleet.load import put
from tests.fleet.sampling import Row
from tests.fleet.stand import WIRING, Stand, temporary_folder
from tests.fleet.verdicts import account
from tests.fleet.worker import Samples, WorkerProcess
from tests.waiting import wait_for

KEY = "videos/blue.mp4"


@pytest.fixture(scope="module")
def drained() -> Iterator[tuple[Stand, dict[str, Clip]]]:
    """A stand on which two good videos and a bad one were decided, and no worker runs any more."""
    with temporary_folder() as folder:
        settings = footage.colour_policy(folder / "weights")
        red, blue, _ = footage.short_clips(folder / "clips")
        text = footage.poison(folder / "clips")[1]
        expected = {"videos/red.mp4": red, KEY: blue, "videos/text.mp4": text}
        with Stand(folder / "stand", settings) as stand:
            put(stand, [(key, lambda clip=clip: clip.data) for key, clip in expected.items()])  # type: ignore[misc]
            worker = stand.worker()
            stand.wait_until_settled(3, timeout_s=120)
            stand.wait_until_empty(30)
            worker.terminate()
            worker.wait(60)
            yield stand, expected


def _changed(stand: Stand, statement: str, back: str, expected: dict[str, Clip]) -> dict[str, int]:
    """The faults that are found while `statement` has been carried out; `back` undoes it."""
    with psycopg.connect(stand.postgres.url, autocommit=True) as connection:
        connection.execute(statement.encode())
        try:
            return account(stand, expected).faults()
        finally:
            connection.execute(back.encode())


def test_a_sound_stand_has_no_faults(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    found = account(stand, expected)
    assert found.faults() == {}
    assert found.states == {"decided": 2, "rejected": 1}


def test_an_upload_without_a_run_is_lost(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    found = account(stand, expected | {"videos/never.mp4": expected[KEY]})
    assert found.lost == ["videos/never.mp4: no run"]


def test_a_run_that_has_not_ended_is_lost(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    change = "UPDATE runs SET state = '{}' WHERE state = '{}'"
    faults = _changed(stand, change.format("queued", "rejected"), change.format("rejected", "queued"), expected)
    assert faults == {"lost": 1}


def test_a_run_of_an_unknown_object_is_noticed(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    assert account(stand, {key: clip for key, clip in expected.items() if key != KEY}).doubled == [f"{KEY}: 1 runs"]


def test_a_wrong_answer_and_a_wrong_reason_are_noticed(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    wrong = {KEY: expected["videos/red.mp4"], "videos/text.mp4": Clip("text", b"", rejected=Reason.TRUNCATED)}
    assert account(stand, expected | wrong).faults() == {"wrong": 2}


def test_costs_under_another_fence_are_noticed(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    change = "UPDATE stage_costs SET fence = fence {} 1"
    assert _changed(stand, change.format("+"), change.format("-"), expected) == {"half_committed": 2}


def test_an_artifact_of_nobody_and_a_missing_result_are_noticed(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    stand.clients.s3.put_object(Bucket=WIRING.artifacts, Key=f"runs/{uuid4()}/1/result.json", Body=b"{}")
    change = "UPDATE runs SET result_key = '{}' || result_key WHERE result_key IS NOT NULL"
    back = "UPDATE runs SET result_key = substr(result_key, 2) WHERE result_key IS NOT NULL"
    try:
        assert len(account(stand, expected).orphans) == 1
        faults = _changed(stand, change.format("x"), back, expected)
        assert faults["without_artifacts"] == 2
        assert faults["orphans"] > 2
    finally:
        for key in account(stand, expected).orphans:
            stand.clients.s3.delete_object(Bucket=WIRING.artifacts, Key=key)


def test_dead_letters_that_should_not_be_and_that_are_missing_are_noticed(
    drained: tuple[Stand, dict[str, Clip]],
) -> None:
    stand, expected = drained
    stand.dead_letter.send("a video's message")
    found = account(stand, expected, garbage=["garbage"], must_lie_dead=["garbage"])
    assert found.faults() == {"wrong_dead_letters": 1, "missing_dead_letters": 1}


def test_a_second_commit_of_a_run_is_noticed(drained: tuple[Stand, dict[str, Clip]]) -> None:
    stand, expected = drained
    log = stand.workers[0].log
    kept = log.read_text()
    commit = next(event for event in stand.workers[0].events() if event["event"] == "run_committed")
    try:
        log.write_text(f"{kept}{json.dumps(commit)}\n")
        assert account(stand, expected).committed_twice == [commit["run_id"]]
    finally:
        log.write_text(kept)


def test_a_seed_decides_what_happens_and_every_kind_of_trouble_is_on_the_schedule() -> None:
    plan = Plan()
    assert chaos.schedule(plan) == chaos.schedule(plan) != chaos.schedule(Plan(seed=6))
    counts = Counter(action for _, action in chaos.schedule(plan))
    assert counts == {"kill": 32, "pause": 6, "aws stop": 1, "aws kill": 1, "postgres stop": 1, "postgres kill": 1}
    assert all(0 <= due < plan.videos for due, _ in chaos.schedule(plan))


def test_five_per_cent_of_the_videos_are_poison(tmp_path: Path) -> None:
    clips = chaos.uploads(Plan(), tmp_path).values()
    assert sum(clip.rejected is not None for clip in clips) == 25
    assert len({clip.rejected for clip in clips}) == 5  # four reasons, and none


def test_growth_compares_the_time_after_the_first_videos_with_the_end() -> None:
    names = ("parent_rss_bytes", "pss_bytes", "rss_bytes", "processes", "threads", "descriptors", "memfds")
    rows: list[Row] = [{"settled": n, **dict.fromkeys(names, 100.0 + n / 100)} for n in range(0, 1000, 10)]
    found = drain.growth(rows, 1000)["pss_bytes"]
    assert found["first"] == pytest.approx(101.45)
    assert found["last"] == pytest.approx(109.45)
    assert found["grown"] == pytest.approx(0.0789, abs=1e-3)


def test_samples_add_up_and_subtract_by_label() -> None:
    one = Samples({("cpu", frozenset({("stage", "a")})): 1.0, ("cpu", frozenset({("stage", "b")})): 2.0})
    assert (one + one - one).by("cpu", "stage") == {"a": 1.0, "b": 2.0}
    assert (one + one).total("cpu", stage="b") == 4.0


def test_a_process_tree_is_counted_with_its_children(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    child = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    worker = WorkerProcess({}, tmp_path / "log", ("python3", "-c", script))
    try:
        wait_for(ready.exists)
        assert processes.usage(worker.pid).processes == 2
        assert processes.usage(worker.pid).pss_bytes > 0
        left = worker.kill()
    finally:
        assert worker.code is not None
    assert processes.tree(worker.pid) == []
    assert len(left) == 1
    assert processes.wait_until_gone(left, 0.1) == left, "nobody ended the child, and it must be said"
    os.kill(left[0], signal.SIGKILL)
    assert processes.wait_until_gone(left, 10) == []
