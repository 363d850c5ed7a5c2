"""`videosieve up` as a user runs it: start, upload, kill, stop, start again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.video.synthesis import write_clip
from tests.clips import moving_frames
from tests.road.conftest import RED, colour_clip
from tests.services import free_port
from tests.waiting import wait_for


class Up:
    """One `videosieve up` on a data folder, and a client of its API."""

    def __init__(self, data_dir: Path, weights: Path) -> None:
        self.data_dir = data_dir / "state"
        self.port = free_port()
        self.environment = os.environ | {
            "VIDEOSIEVE_DATA_DIR": str(self.data_dir),
            "VIDEOSIEVE_LOCAL__AWS_PORT": str(free_port()),
            "VIDEOSIEVE_API__PORT": str(self.port),
            "VIDEOSIEVE_WORKER__METRICS_PORT": "0",
            "VIDEOSIEVE_WORKER__POLL_WAIT_S": "1",
            "VIDEOSIEVE_WORKER__LEASE_S": "3",
            "VIDEOSIEVE_POLICY": str(weights / "colours.yaml"),
            "VIDEOSIEVE_MODELS__DIR": str(weights),
            "VIDEOSIEVE_MODELS__EXTRA_CATALOG": str(weights / "extra.yaml"),
        }
        self.process: subprocess.Popen[str] | None = None

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "up"],
            env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.process = process
        try:
            wait_for(lambda: self._is_ready() or process.poll() is not None)
            assert process.poll() is None, process.stderr and process.stderr.read()
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=30)
            wait_for(lambda: not self.leftovers())

    def videosieve(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "workers.cli", *arguments],
            env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def request(self, key: str, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.request(method, url, headers=headers, trust_env=False, timeout=30, **arguments)

    def upload(self, key: str, path: Path) -> str:
        """Upload through a presigned POST; the status URL."""
        created = self.request(key, "POST", "/v1/uploads", json={"filename": path.name}).json()
        with path.open("rb") as file:
            httpx.post(created["url"], data=created["fields"], files={"file": file}, trust_env=False).raise_for_status()
        return str(created["status_url"])

    def status(self, key: str, status_url: str) -> dict[str, Any]:
        found: dict[str, Any] = self.request(key, "GET", status_url).json()
        return found

    def worker_pid(self) -> int:
        """The pid that the last worker wrote into its log."""
        started = [line for line in (self.data_dir / "worker.log").read_text().splitlines() if "worker_started" in line]
        return int(json.loads(started[-1])["worker"].rsplit("-", 1)[1])

    def leftovers(self) -> list[str]:
        """Processes that name our data folder in their command line or environment."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.data_dir) in text and int(process.name) != os.getpid():
                found.append(text[:200].decode(errors="replace"))
        return found

    def _is_ready(self) -> bool:
        """Whether `up` is through: its last step, after the API answers, is to write down where everything is."""
        if not (self.data_dir / "services.json").exists():
            return False
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz", trust_env=False, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture
def up(data_dir: Path, weights: Path) -> Up:
    return Up(data_dir, weights)


def test_state_survives_a_stop_and_every_process_ends(up: Up, tmp_path: Path) -> None:
    with up.running() as process:
        key = up.videosieve("tenants", "add", "acme")
        status_url = up.upload(key, colour_clip(tmp_path / "red.mp4", RED))
        wait_for(lambda: up.status(key, status_url)["state"] == "decided")
        process.terminate()
        assert process.wait(60) == 0
        assert up.leftovers() == []
    with up.running() as process:
        assert up.status(key, status_url)["state"] == "decided"
        result = up.request(key, "GET", f"{status_url}/result").json()
        assert {verdict["question"]: verdict["answer"] for verdict in result["verdicts"]} == {
            "red": "positive",
            "blue": "negative",
        }
        picture = httpx.get(result["keyframes"][0]["image"], trust_env=False)
        assert picture.content[:2] == b"\xff\xd8"
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C in a terminal does
        assert process.wait(60) == 0
        assert up.leftovers() == []


def test_a_worker_killed_in_mid_run_is_started_again_and_decides_once(up: Up, tmp_path: Path) -> None:
    slow = tmp_path / "slow.mp4"
    write_clip(slow, moving_frames(20.0, ((2.0, 18.0),), noise=12.0), 30, options={"preset": "ultrafast", "g": "15"})
    with up.running():
        key = up.videosieve("tenants", "add", "acme")
        status_url = up.upload(key, slow)
        wait_for(lambda: up.status(key, status_url)["state"] == "processing", every_s=0.01)
        os.kill(up.worker_pid(), signal.SIGKILL)
        assert up.status(key, status_url)["state"] == "processing", "the video was too quick to be interrupted"
        wait_for(lambda: up.status(key, status_url)["state"] in {"decided", "in_review"}, timeout_s=60)
        (run,) = [json.loads(line) for line in up.videosieve("runs", "list", "--json").splitlines()]
        assert (run["fence"], run["attempts"]) == (2, 2)


def test_killing_up_itself_takes_everything_along_and_loses_no_decision(up: Up, tmp_path: Path) -> None:
    with up.running() as process:
        key = up.videosieve("tenants", "add", "acme")
        status_url = up.upload(key, colour_clip(tmp_path / "red.mp4", RED))
        wait_for(lambda: up.status(key, status_url)["state"] == "decided")
        process.kill()
        process.wait()
        wait_for(lambda: not up.leftovers())
    with up.running():
        assert up.status(key, status_url)["state"] == "decided"
        assert up.videosieve("down") == ""
        wait_for(lambda: not up.leftovers(), timeout_s=5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's upload needs curl")
def test_the_readmes_upload_works_as_it_is_written(up: Up, tmp_path: Path) -> None:
    readme = Path(__file__).parents[2] / "README.md"
    (block,) = [part for part in readme.read_text().split("```")[1::2] if "videosieve up --detach" in part]
    script = block.removeprefix("sh\n").replace("127.0.0.1:8080", f"127.0.0.1:{up.port}")
    colour_clip(tmp_path / "clip.mp4", RED)
    binaries = Path(sys.executable).parent
    try:
        done = subprocess.run(
            ["sh", "-euc", script],
            env=up.environment | {"PATH": f"{binaries}:{os.environ['PATH']}"},
            cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"state":' in done.stdout
        (run,) = [json.loads(line) for line in up.videosieve("runs", "list", "--json").splitlines()]
        assert run["key"].endswith("/clip.mp4")
    finally:
        up.videosieve("down")
        wait_for(lambda: not up.leftovers(), timeout_s=5)


def test_two_ups_on_one_data_folder_or_port_are_told_apart(up: Up) -> None:
    with up.running():
        second = subprocess.run(
            [sys.executable, "-m", "workers.cli", "up"],
            env=up.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode == 2
        assert "another `videosieve up` runs on" in second.stderr
        assert second.stderr.strip().splitlines()[-1].startswith("videosieve: bad_setting: ")
        assert "Traceback" not in second.stderr
        assert up.videosieve("tenants", "list") == "", "the first one is still found and works"


def test_a_port_that_somebody_has_is_named_with_its_setting(up: Up) -> None:
    with socket.create_server(("127.0.0.1", up.port)):
        done = subprocess.run(
            [sys.executable, "-m", "workers.cli", "up"],
            env=up.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "VIDEOSIEVE_API__PORT" in done.stderr
    assert up.leftovers() == []


def test_what_a_killed_up_left_behind_is_not_believed(up: Up) -> None:
    with up.running() as process:
        process.kill()
        process.wait()
        wait_for(lambda: not up.leftovers())
    assert (up.data_dir / "services.json").exists()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        services = json.loads((up.data_dir / "services.json").read_text())
        (up.data_dir / "services.json").write_text(json.dumps(services | {"pid": bystander.pid}))
        assert up.videosieve("down") == ""
        assert bystander.poll() is None
        assert up.videosieve("tenants", "list") == ""
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("VIDEOSIEVE_DATABASE__URL", "postgresql://elsewhere/x", "VIDEOSIEVE_DATABASE__URL is set"),
        ("VIDEOSIEVE_DATA_DIR", "/proc/nope", "VIDEOSIEVE_DATA_DIR"),
        ("VIDEOSIEVE_DATA_DIR", __file__, "not a folder"),
    ],
)
def test_a_set_up_that_up_cannot_run_is_one_line(up: Up, setting: str, value: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers.cli", "up"],
        env=up.environment | {setting: value}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
