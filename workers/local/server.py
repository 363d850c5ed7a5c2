"""What the embedded services have in common: one owner, a start that is waited for, a stop that leaves no process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, Self

from pipeline.errors import FatalError, Reason
from workers.local.watched import WatchedProcess, disown_folder, own_folder


class EmbeddedServer(ABC):
    """A server of our own that keeps everything in `data_dir`, which belongs to one process at a time."""

    def __init__(self, data_dir: Path, name: str, *, called: str) -> None:
        """`name` is that of its lock and log files; errors say what it is `called`."""
        self.data_dir = data_dir.expanduser().absolute()
        self._name = name
        self._called = called
        self._lock: IO[str] | None = None
        self._child: WatchedProcess | None = None

    def start(self) -> str:
        """Start the server, wait until it answers, and return its address.

        Raises FatalError where it cannot be started, UserError where somebody else has the folder or the port.
        """
        if not self.is_running:
            self.stop()  # forget a server that crashed
            self._prepare()
            self._lock = own_folder(self.data_dir / f"{self._name}.lock", self.data_dir)
            try:
                self._child = self._launch()
                self._child.wait_until(self._answers, self._called)
                self._complete()
            except BaseException:
                self.stop()
                raise
        return self._address()

    def stop(self) -> None:
        """Stop the server, which saves its state, and leave no process; idempotent."""
        if self._child is not None:
            self._child.stop()
            self._child = None
            self._clear()
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

    @property
    def log(self) -> Path:
        return self.data_dir / f"{self._name}.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _address(self) -> str: ...

    @abstractmethod
    def _prepare(self) -> None:
        """Make the folders."""

    @abstractmethod
    def _launch(self) -> WatchedProcess:
        """Start the process, in a folder that is ours alone."""

    @abstractmethod
    def _answers(self) -> bool: ...

    def _complete(self) -> None:  # noqa: B027 - nothing is a good answer
        """Do what needs the running server."""

    def _clear(self) -> None:  # noqa: B027 - nothing is a good answer
        """Remove what only a running server needs."""


def extra_missing(package: str) -> FatalError:
    return FatalError(Reason.MISSING_DEPENDENCY, f"{package} is not installed: run pip install 'videosieve[local]'")
