"""How many requests one engine is given at once: up slowly while it answers promptly, down fast when it does not.

Additive increase, multiplicative decrease, as in TCP: `limit` grows by about one each time that as many requests have
been answered in time, and falls to `DECREASE` of itself on a 429, on a first token that is late (which is what a queue
inside the engine looks like from here) and on a timeout, at most once for the requests that were under way together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

DECREASE = 0.7
START = 4.0
_BUSY_PAUSE_S = 1.0
"""After a 429 that names no time."""


class AdaptiveLimiter:
    """One for each engine and process; thread-safe. Pure but for the clock, which is given."""

    def __init__(self, *, most: int, ttft_goal_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if most < 1:
            raise ValueError(f"at least one request must be allowed, not {most}")
        self._most = most
        self._ttft_goal_s = ttft_goal_s
        self._clock = clock
        self._lock = threading.Lock()
        self._limit = min(START, float(most))
        self._in_flight = 0
        self._paused_until_s = 0.0
        self._decreased_s = float("-inf")

    @property
    def limit(self) -> float:
        return self._limit

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def may_begin(self, in_flight: int) -> bool:
        """Whether one more than `in_flight` may be begun now."""
        with self._lock:
            return in_flight < int(self._limit) and self._clock() >= self._paused_until_s

    def paused_s(self) -> float:
        """How long the engine is to be left alone yet; 0 where it is not."""
        with self._lock:
            return max(0.0, self._paused_until_s - self._clock())

    def begin(self) -> float:
        """A request is sent; its start, to be given back to `answered` or `overloaded`."""
        with self._lock:
            self._in_flight += 1
            return self._clock()

    def answered(self, started_s: float, ttft_s: float) -> None:
        """A request was answered; its first token came after `ttft_s`."""
        with self._lock:
            was_full = self._in_flight >= int(self._limit)
            self._in_flight -= 1
            if ttft_s > self._ttft_goal_s:
                self._decrease(started_s)
            elif was_full:  # else the limit is not what holds us back, and says nothing
                self._limit = min(float(self._most), self._limit + 1.0 / self._limit)

    def overloaded(self, started_s: float, *, retry_after_s: float | None = None, pause: bool = False) -> None:
        """A request was refused or timed out; with `pause` the engine is left alone, as long as it asked for."""
        with self._lock:
            self._in_flight -= 1
            self._decrease(started_s)
            if pause:
                wait_s = _BUSY_PAUSE_S if retry_after_s is None else retry_after_s
                self._paused_until_s = max(self._paused_until_s, self._clock() + wait_s)

    def dropped(self) -> None:
        """A request ended in a way that says nothing about the engine's load."""
        with self._lock:
            self._in_flight -= 1

    def _decrease(self, started_s: float) -> None:
        """Once for all requests that were begun before the last decrease: they met the same engine."""
        if started_s >= self._decreased_s:
            self._decreased_s = self._clock()
            self._limit = max(1.0, self._limit * DECREASE)
