"""One `videosieve worker` as a process: started, asked, paused, killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.fleet.processes import tree
from tests.services import free_port

COMMAND = (sys.executable, "-m", "workers.cli", "worker")


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """A scrape of /metrics: (name, labels) → value."""

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples called `name` that carry `labels`."""
        wanted = set(labels.items())
        return sum(value for (found, has), value in self.items() if found == name and wanted <= has)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums of the samples called `name` by the value of one label."""
        sums: dict[str, float] = {}
        for (found, has), value in self.items():
            if found == name:
                key = dict(has).get(label, "")
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def __sub__(self, earlier: Samples) -> Samples:
        return Samples({key: value - earlier.get(key, 0.0) for key, value in self.items()})

    def __add__(self, other: Samples) -> Samples:
        return Samples({key: self.get(key, 0.0) + other.get(key, 0.0) for key in {*self, *other}})


class WorkerProcess:
    """A worker with a port for its metrics and health, and a log of its own."""

    def __init__(self, environment: Mapping[str, str], log: Path, command: Sequence[str] = COMMAND) -> None:
        self.log = log
        self.port = free_port()
        settings = {"VIDEOSIEVE_WORKER__METRICS_PORT": str(self.port)}
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command), env={**os.environ, **environment, **settings}, stdout=out, stderr=out
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def kill(self) -> list[int]:
        """SIGKILL, as the kernel would do it; the process ids that it leaves behind."""
        others = tree(self.pid)[1:]
        self._process.kill()
        self._process.wait()
        return others

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def wait_until_started(self, timeout_s: float) -> bool:
        """Whether its log says within `timeout_s` that it has begun to consume."""
        deadline_s = time.monotonic() + timeout_s
        while not (begun := "worker_started" in self.log.read_text(errors="replace")):
            if self.code is not None or time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return begun

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def scrape(self) -> Samples:
        """Its metrics; empty where it does not answer."""
        status, body = self.get("/metrics")
        if status != http.HTTPStatus.OK:
            return Samples()
        families = text_string_to_metric_families(body)
        return Samples({(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples})

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page of its; (0, what is wrong) where it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Its log's lines that are JSON."""
        with self.log.open(errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    found = json.loads(line)
                    if isinstance(found, dict):
                        yield found
