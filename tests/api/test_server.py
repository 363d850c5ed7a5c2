"""The API's own process: it listens, drains when it is told to stop, and says what is wrong with its address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.errors import Reason, UserError
from pipeline.stores.aws import Wiring
from tests.api.fakes import wait_until
from workers.api.listening import listen
from workers.local.aws import AWS_KEY, AWS_SECRET, EmbeddedAws
from workers.settings import ApiSettings

SERVE = """
from workers.api.server import serve
from workers.logs import configure_logs
from workers.settings import load_settings

settings = load_settings()
configure_logs(settings.log, service="api")
serve(settings)
"""


class Process:
    """`serve` in a process of its own, and the structured log that it writes."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append(json.loads(line))

    def event(self, name: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["event"] == name), None)

    @property
    def base_url(self) -> str:
        wait_until(lambda: self.event("api_listening") is not None, "it listens", deadline_s=60)
        listening = self.event("api_listening")
        assert listening is not None
        return f"http://{listening['host']}:{listening['port']}"

    def wait(self) -> int:
        status = self.child.wait(timeout=60)
        self._reader.join()
        return status


@contextmanager
def running(environment: dict[str, str], folder: Path) -> Iterator[Process]:
    root = Path(__file__).parents[2]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("VIDEOSIEVE_")}
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        cwd=folder,
        env={**plain, **environment, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    process = Process(child)
    try:
        yield process
    finally:
        child.kill()
        process.wait()
        assert child.stderr is not None
        child.stderr.close()


@pytest.fixture
def environment(database_url: str, aws: EmbeddedAws, stack: Wiring) -> dict[str, str]:
    return {
        "VIDEOSIEVE_DATABASE__URL": database_url,
        "VIDEOSIEVE_AWS__ENDPOINT_URL": aws.endpoint_url,
        "VIDEOSIEVE_AWS__ACCESS_KEY_ID": AWS_KEY,
        "VIDEOSIEVE_AWS__SECRET_ACCESS_KEY": AWS_SECRET,
        "VIDEOSIEVE_STORAGE__ORIGINALS_BUCKET": stack.originals,
        "VIDEOSIEVE_STORAGE__ARTIFACTS_BUCKET": stack.artifacts,
        "VIDEOSIEVE_API__PORT": "0",
        "VIDEOSIEVE_LOG__FORMAT": "json",
    }


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_served_api_is_ready_and_ends_well_when_told_to_stop(
    environment: dict[str, str], tmp_path: Path, stop: signal.Signals
) -> None:
    with running(environment, tmp_path) as process:
        ready = httpx.get(process.base_url + "/readyz", timeout=30, trust_env=False)
        process.child.send_signal(stop)
        assert process.wait() == 0
    assert ready.json()["status"] == "ok"
    assert process.event("api_stopped") is not None
    request = process.event("api_request")
    assert request is not None
    assert (request["route"], request["status"], request["service"]) == ("/readyz", 200, "api")


def test_a_request_under_way_is_answered_before_the_process_ends(environment: dict[str, str], tmp_path: Path) -> None:
    with running(environment, tmp_path) as process:
        host, port = process.base_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
            httpx.get(process.base_url + "/healthz", trust_env=False)  # by now the slow one has been accepted
            process.child.send_signal(signal.SIGTERM)
            wait_until(lambda: not accepts(host, int(port)), "it stops listening")
            slow.sendall(b"x")
            assert slow.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert process.wait() == 0


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_an_address_of_either_family_can_be_listened_on(host: str) -> None:
    try:
        with listen(ApiSettings(host=host, port=0)) as listener:
            assert listener.getsockname()[1] > 0
    except UserError:
        if host == "::1":
            pytest.skip("this machine has no IPv6")
        raise


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with (
        listen(ApiSettings(port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_port_that_is_taken_is_the_users_mistake_and_named() -> None:
    with listen(ApiSettings(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError) as refused:
            listen(ApiSettings(port=port))
    assert refused.value.reason is Reason.BAD_SETTING
    assert f"127.0.0.1:{port}" in refused.value.detail
    assert "VIDEOSIEVE_API__PORT" in refused.value.detail


def test_a_host_that_is_unknown_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="cannot listen on"):
        listen(ApiSettings(host="no.such.host.invalid", port=0))
