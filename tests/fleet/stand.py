"""A test stand: ministack and PostgreSQL under our control, a wired stack, and workers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pipeline.errors import VideosieveError
from pipeline.stores import aws as aws_clients
from pipeline.stores import migrate
from pipeline.stores.aws import Clients, Wiring
from pipeline.stores.queue import Queue
from tests.fleet.books import Books
from tests.fleet.worker import COMMAND, WorkerProcess
from tests.services import free_port
from workers.local.aws import AWS_KEY, AWS_SECRET, EmbeddedAws
from workers.local.postgres import EmbeddedPostgres

WIRING = Wiring(
    originals="fleet-originals",
    artifacts="fleet-artifacts",
    uploads="fleet-uploads",
    backfill="fleet-backfill",
    escalation="fleet-escalation",
    dead_letter="fleet-dead-letter",
)


class Stand:
    """Services in `folder` and the workers on them. `settings` are environment variables for every worker."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        aws_dir: Path | None = None,
        postgres_dir: Path | None = None,
    ) -> None:
        self.folder = folder
        self.aws = EmbeddedAws(aws_dir or folder / "data", free_port())
        self.postgres = EmbeddedPostgres(postgres_dir or folder / "data")
        self.clients: Clients = aws_clients.connect(
            endpoint_url=self.aws.endpoint_url, access_key_id=AWS_KEY, secret_access_key=AWS_SECRET
        )
        self.uploads = Queue(self.clients.sqs, WIRING.uploads)
        self.backfill = Queue(self.clients.sqs, WIRING.backfill)
        self.dead_letter = Queue(self.clients.sqs, WIRING.dead_letter)
        self.books = Books(self.postgres.url)
        self.workers: list[WorkerProcess] = []
        self._handler: Any = None
        self.settings = {**self._settings(), **settings}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, _end)  # else the workers would live on
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.postgres.start()
            migrate.upgrade(self.postgres.url)
            self.start_aws()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            if worker.code is None:
                worker.resume()
                worker.kill()
        self.books.close()
        self.clients.close()
        self.aws.stop()
        self.postgres.stop()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)

    def start_aws(self) -> None:
        """Start the emulator and see to it that everything is wired, as `videosieve up` does."""
        self.aws.start()
        aws_clients.wire(self.clients, WIRING)

    def worker(self, command: Sequence[str] = COMMAND, **settings: str) -> WorkerProcess:
        """One more worker; `settings` by variable override the stand's."""
        log = self.folder / f"worker-{len(self.workers):03d}.log"
        started = WorkerProcess({**self.settings, **settings}, log, command)
        self.workers.append(started)
        return started

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.code is None]

    def command(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a `videosieve` command on this stand."""
        return subprocess.run(
            [sys.executable, "-m", "workers.cli", *arguments],
            env={**os.environ, **self.settings},
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def service_pids(self) -> dict[str, int]:
        """The roots of the stand-ins' process trees."""
        found = {"ministack": self.aws._child, "postgres": self.postgres._child}
        return {name: child._process.pid for name, child in found.items() if child is not None}

    def backlog(self) -> int | None:
        """Messages on both lanes, seen, hidden and delayed; None while the emulator does not answer."""
        try:
            depths = [queue.depth() for queue in (self.uploads, self.backfill)]
        except VideosieveError:
            return None
        return sum(depth["visible"] + depth["in_flight"] + depth["delayed"] for depth in depths)

    def dead_letters(self) -> list[dict[str, str]]:
        """Attributes and bodies of everything in the dead-letter queue, which is emptied."""
        found = []
        while messages := self.dead_letter.receive(wait_s=0, visibility_s=60):
            for message in messages:
                found.append({**message.attributes, "body": message.body})
                self.dead_letter.delete(message)
        return found

    def wait_until_settled(self, count: int, *, timeout_s: float, prefix: str = "", every_s: float = 0.5) -> int:
        """Return once `count` runs have ended, or when `timeout_s` have passed; how many have."""
        deadline_s = time.monotonic() + timeout_s
        while (found := self.books.settled(prefix)) < count and time.monotonic() < deadline_s:
            time.sleep(every_s)
        return found

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether both lanes hold nothing any more within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while self.backlog() != 0:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.2)
        return True

    def _settings(self) -> dict[str, str]:
        return {
            "VIDEOSIEVE_AWS__ENDPOINT_URL": self.aws.endpoint_url,
            "VIDEOSIEVE_AWS__ACCESS_KEY_ID": AWS_KEY,
            "VIDEOSIEVE_AWS__SECRET_ACCESS_KEY": AWS_SECRET,
            "VIDEOSIEVE_DATABASE__URL": self.postgres.url,
            "VIDEOSIEVE_STORAGE__ORIGINALS_BUCKET": WIRING.originals,
            "VIDEOSIEVE_STORAGE__ARTIFACTS_BUCKET": WIRING.artifacts,
            "VIDEOSIEVE_QUEUES__UPLOADS": WIRING.uploads,
            "VIDEOSIEVE_QUEUES__BACKFILL": WIRING.backfill,
            "VIDEOSIEVE_QUEUES__ESCALATION": WIRING.escalation,
            "VIDEOSIEVE_QUEUES__DEAD_LETTER": WIRING.dead_letter,
            "VIDEOSIEVE_LOG__FORMAT": "json",
        }


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for one stand. Services that were killed may still write when it goes, which is no error."""
    with tempfile.TemporaryDirectory(prefix="vs-fleet-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _end(*_: object) -> None:
    """SIGTERM unwinds the program, so that what it started is stopped."""
    sys.exit(128 + signal.SIGTERM)
