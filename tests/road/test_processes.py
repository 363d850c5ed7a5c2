"""Workers as real processes: killed, paused, stopped, and set up wrongly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.verdict import RunState
from pipeline.video.synthesis import write_clip
from tests.clips import moving_frames
from tests.road.conftest import BLUE, Fleet, StartWorker, colour_clip, fleet_environment
from tests.waiting import wait_for
from workers.local.aws import EmbeddedAws


def _slow_clip(folder: Path) -> Path:
    """A clip that takes a moment: many keyframes at the policy's 60 a minute."""
    path = folder / "slow.mp4"
    write_clip(path, moving_frames(20.0, ((2.0, 18.0),), noise=12.0), 30, options={"preset": "ultrafast", "g": "15"})
    return path


def _is_processing(fleet: Fleet) -> bool:
    return any(run.state is RunState.PROCESSING for run in fleet.runs())


def test_a_worker_killed_in_mid_run_loses_nothing_and_decides_once(
    fleet: Fleet, start_worker: StartWorker, tmp_path: Path
) -> None:
    fleet.upload(_slow_clip(tmp_path))
    first = start_worker(VIDEOSIEVE_WORKER__LEASE_S="3")
    wait_for(lambda: _is_processing(fleet))
    first.kill()
    first.wait()
    assert _is_processing(fleet), "the video was too quick to be interrupted"
    start_worker(VIDEOSIEVE_WORKER__LEASE_S="30")
    (run,) = fleet.wait_until_settled(1)
    fleet.wait_until_empty()
    assert run.state in (RunState.DECIDED, RunState.IN_REVIEW)
    assert (run.fence, run.attempts) == (2, 2)
    assert run.result_key is not None
    assert f"/{run.fence}/" in run.result_key


def test_a_worker_paused_past_its_lease_cannot_commit(fleet: Fleet, start_worker: StartWorker, tmp_path: Path) -> None:
    fleet.upload(_slow_clip(tmp_path))
    paused = start_worker(VIDEOSIEVE_WORKER__LEASE_S="3")
    wait_for(lambda: _is_processing(fleet))
    os.kill(paused.pid, signal.SIGSTOP)
    assert _is_processing(fleet), "the video was too quick to be interrupted"
    other = start_worker(VIDEOSIEVE_WORKER__LEASE_S="30")
    (run,) = fleet.wait_until_settled(1)
    committed = (run.state, run.fence, run.result_key, run.updated_at)
    os.kill(paused.pid, signal.SIGCONT)
    paused.terminate()
    assert paused.wait(30) == 0
    (run,) = fleet.runs()
    assert (run.state, run.fence, run.result_key, run.updated_at) == committed
    assert run.fence == 2
    other.terminate()
    assert other.wait(30) == 0


def test_a_stopped_worker_finishes_what_it_has(fleet: Fleet, start_worker: StartWorker, tmp_path: Path) -> None:
    fleet.upload(_slow_clip(tmp_path))
    worker = start_worker(VIDEOSIEVE_WORKER__GRACE_S="60")
    wait_for(lambda: _is_processing(fleet))
    worker.terminate()
    assert worker.wait(60) == 0
    (run,) = fleet.runs()
    assert run.state in (RunState.DECIDED, RunState.IN_REVIEW)
    assert run.fence == 1


def test_a_stopped_worker_gives_back_what_takes_too_long(
    fleet: Fleet, start_worker: StartWorker, tmp_path: Path
) -> None:
    fleet.upload(_slow_clip(tmp_path))
    worker = start_worker(VIDEOSIEVE_WORKER__GRACE_S="0", VIDEOSIEVE_WORKER__POLL_WAIT_S="0")
    wait_for(lambda: _is_processing(fleet))
    worker.terminate()
    assert worker.wait(30) == 0
    (run,) = fleet.runs()
    assert run.state is RunState.QUEUED
    start_worker()
    (run,) = fleet.wait_until_settled(1)
    assert run.state in (RunState.DECIDED, RunState.IN_REVIEW)
    assert run.attempts == 1, "giving back is no attempt"


@pytest.mark.parametrize(
    ("setting", "value", "reason", "words"),
    [
        ("VIDEOSIEVE_WORKER__LEASE_S", "soon", "bad_setting", "VIDEOSIEVE_WORKER__LEASE_S"),
        ("VIDEOSIEVE_WORKER__LEES_S", "30", "bad_setting", "did you mean VIDEOSIEVE_WORKER__LEASE_S"),
        ("VIDEOSIEVE_POLICY", "nowhere.yaml", "bad_policy", "shipped are"),
        ("VIDEOSIEVE_MODELS__DIR", "/nonexistent", "weights_missing", "videosieve models pull"),
        ("VIDEOSIEVE_DATABASE__URL", "postgresql://u:secret@127.0.0.1:1/x", "database_unavailable", "127.0.0.1"),
        ("VIDEOSIEVE_DATABASE__URL", "mysql://x", "bad_setting", "postgresql"),
        ("VIDEOSIEVE_QUEUES__UPLOADS", "no-such-queue", "bad_setting", "no-such-queue"),
        ("VIDEOSIEVE_AWS__ENDPOINT_URL", "nonsense", "bad_setting", "nonsense"),
    ],
)
def test_a_wrong_set_up_is_one_line_that_says_what_to_do(
    fleet: Fleet, aws: EmbeddedAws, database_url: str, setting: str, value: str, reason: str, words: str
) -> None:
    environment = os.environ | fleet_environment(fleet, aws, database_url) | {setting: value}
    done = subprocess.run(
        [sys.executable, "-m", "workers.cli", "worker"],
        env=environment | {"VIDEOSIEVE_DATABASE__WAIT_S": "1"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith(f"videosieve: {reason}: ")
    assert words in line


def test_altered_weights_stop_the_worker_before_it_takes_anything(
    fleet: Fleet, aws: EmbeddedAws, database_url: str, tmp_path: Path
) -> None:
    fleet.upload(colour_clip(tmp_path / "blue.mp4", BLUE))
    (tmp_path / "tiny.onnx").write_bytes(b"something else")
    environment = os.environ | fleet_environment(fleet, aws, database_url)
    done = subprocess.run(
        [sys.executable, "-m", "workers.cli", "worker"],
        env=environment | {"VIDEOSIEVE_MODELS__DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("videosieve: weights_altered: ")
    assert fleet.runs() == []


def test_the_log_of_a_video_carries_its_trace_and_no_secret(
    fleet: Fleet, start_worker: StartWorker, tmp_path: Path
) -> None:
    fleet.upload(colour_clip(tmp_path / "blue.mp4", BLUE))
    worker = start_worker()
    (run,) = fleet.wait_until_settled(1)
    worker.terminate()
    worker.wait(30)
    lines = [json.loads(line) for line in (tmp_path / "worker-0.log").read_text().splitlines()]
    (committed,) = [line for line in lines if line["event"] == "run_committed"]
    assert committed["trace_id"] == run.trace_id
    assert committed["run_id"] == str(run.run_id)
    assert committed["state"] == "decided"
