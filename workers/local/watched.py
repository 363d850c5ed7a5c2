"""Child processes that end with their owner, and data folders with one owner at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from pipeline.errors import FatalError, Reason, UserError

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 20.0
POLL_S = 0.02


class WatchedProcess:
    """A server process under a watchdog, in a session of its own, writing to a log file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stop_signal: signal.Signals,
        log: Path,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._log = log
        watchdog = Path(__file__).with_name("watchdog.py")
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(watchdog), str(int(stop_signal)), user or "", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd or "/",
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, answers: Callable[[], bool], what: str) -> None:
        """Return once `answers()`; FatalError with the log's last lines if the process ends or time runs out."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not answers():
            if not self.is_running:
                raise FatalError(Reason.INTERNAL_ERROR, f"{what} ended at its start; {self._last_words()}")
            if time.monotonic() > deadline:
                raise FatalError(Reason.INTERNAL_ERROR, f"{what} did not answer in time; {self._last_words()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Let the watchdog stop the server; after a deadline kill both."""
        self._hang_up()
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-5:]
        return f"{self._log} says: " + " | ".join(lines)


class FolderInUseError(UserError):
    """Another process owns the data folder at the moment."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(Reason.BAD_SETTING, f"another process is using the data folder {data_dir}")


def own_folder(lock_path: Path, data_dir: Path) -> IO[str]:
    """Lock a data folder for this process; the system lets go of it when the process ends, however it ends."""
    lock = lock_path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise FolderInUseError(data_dir) from error
    return lock


def is_owned(lock_path: Path) -> bool:
    """Whether a live process holds the lock."""
    try:
        with lock_path.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def disown_folder(lock: IO[str] | None) -> None:
    if lock is not None:
        lock.close()
