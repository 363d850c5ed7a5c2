"""A circuit breaker: when a dependency fails for everybody, stop asking it, look now and then, go on by itself.

    closed ──`trips_at` failures in a row──▶ open ──after `wait_s`──▶ half-open: one attempt may pass
      ▲                                       ▲                          │
      └──────────────── it succeeds ──────────┼──────────────────────────┤
                                              └── it fails: wait longer ─┘

Pure but for the clock, which is given. One breaker stands for one dependency (store, database, a VLM engine).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum

WAIT_FIRST_S = 1.0
WAIT_MAX_S = 15.0
"""Twice this is less than the 30 s within which work goes on after an outage."""
STEADY_S = 60.0
"""A breaker that opens again sooner than this after it closed waits longer, as if it had not closed."""
ATTEMPT_S = 60.0
"""An attempt that was let through and never reported, because its thread died, counts as failed after this."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts what befalls one dependency, and says whether to use it. Thread-safe.

    `failed` and `succeeded` return True when they changed the state, so that the caller can say so once.
    """

    def __init__(
        self,
        name: str,
        *,
        trips_at: int = 3,
        wait_first_s: float = WAIT_FIRST_S,
        wait_max_s: float = WAIT_MAX_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if trips_at < 1:
            raise ValueError(f"a breaker cannot trip at {trips_at} failures")
        self.name = name
        self._trips_at = trips_at
        self._wait_first_s = wait_first_s
        self._wait_max_s = wait_max_s
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._wait_s = wait_first_s
        self._until_s = 0.0
        self._since_s: float | None = None
        self._closed_s = -STEADY_S
        self._why = ""

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state is BreakerState.CLOSED

    @property
    def why(self) -> str:
        """What the last failure said; empty while closed."""
        return "" if self.is_closed else self._why

    def open_for_s(self) -> float:
        """How long it has not been closed; 0 while it is."""
        with self._lock:
            return 0.0 if self._since_s is None else self._clock() - self._since_s

    def may_pass(self) -> bool:
        """Whether to use the dependency now. Each True of a breaker that is not closed is one attempt, whose end must
        be told by `failed` or `succeeded`."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                return True
            if self._clock() < self._until_s:
                return False
            self._state = BreakerState.HALF_OPEN
            self._until_s = self._clock() + ATTEMPT_S
            return True

    def wait_s(self) -> float:
        """How long until an attempt may pass; 0 while closed."""
        with self._lock:
            return 0.0 if self._state is BreakerState.CLOSED else max(0.0, self._until_s - self._clock())

    def failed(self, why: str) -> bool:
        """The dependency failed; True when this opened the breaker, from closed."""
        with self._lock:
            self._why = why
            match self._state:
                case BreakerState.CLOSED:
                    self._failures += 1
                    if self._failures < self._trips_at:
                        return False
                    self._since_s = self._clock()
                    is_steady = self._since_s - self._closed_s >= STEADY_S
                    self._open(self._wait_first_s if is_steady else self._longer_s())
                    return True
                case BreakerState.HALF_OPEN:
                    self._open(self._longer_s())
                case BreakerState.OPEN:
                    pass  # work that was begun before it opened
            return False

    def trip(self, why: str) -> bool:
        """Open it at once, whatever was counted; True when it was closed."""
        with self._lock:
            self._failures = max(self._failures, self._trips_at - 1)
        return self.failed(why)

    def worked(self) -> None:
        """Work that was no attempt went well: failures in a row are counted anew.

        Nothing follows from it while the breaker is not closed: the work was begun before that.
        """
        with self._lock:
            if self._state is BreakerState.CLOSED:
                self._failures = 0

    def succeeded(self) -> bool:
        """An attempt succeeded; True when this closed the breaker.

        A success while it is open is of work that was begun earlier: no reason to trust it again.
        """
        with self._lock:
            was = self._state
            if was is BreakerState.OPEN:
                return False
            self._state = BreakerState.CLOSED
            self._failures = 0
            self._since_s = None
            if was is BreakerState.HALF_OPEN:
                self._closed_s = self._clock()
            return was is BreakerState.HALF_OPEN

    def _longer_s(self) -> float:
        return min(self._wait_max_s, 2 * self._wait_s)

    def _open(self, wait_s: float) -> None:
        self._state = BreakerState.OPEN
        self._wait_s = wait_s
        self._until_s = self._clock() + wait_s
