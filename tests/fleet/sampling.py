"""Looks at something again and again from a thread, and keeps what it saw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

Row = dict[str, float | None]


class Sampler:
    """Calls `look` every `every_s`; `rows` gain `t_s`, seconds since the start."""

    def __init__(self, look: Callable[[], Row], every_s: float) -> None:
        self.rows: list[Row] = []
        self._look = look
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._start_s = time.monotonic()

    def __enter__(self) -> Self:
        self._start_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def most(self, name: str) -> float:
        return max((value for row in self.rows if (value := row.get(name)) is not None), default=0.0)

    def last(self, name: str) -> float | None:
        return self.rows[-1].get(name) if self.rows else None

    def thinned(self, count: int = 200) -> list[Row]:
        """At most about `count` rows, evenly chosen, the last one among them."""
        step = max(1, len(self.rows) // count)
        return self.rows[::-1][::step][::-1]

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            at_s = self.now_s()
            self.rows.append({"t_s": round(at_s, 2), **self._look()})
