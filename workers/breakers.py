"""The breakers of a worker: when a dependency fails for everybody, nothing is received until it works again.

An outage must neither reject a video nor carry messages into the dead-letter queue. So a worker counts what befalls
each dependency; once one fails several times in a row, it stops receiving, says so (log, metric, `/readyz`), and looks
with a probe of its own, never with somebody's message, whether the dependency is back.

Too many rejections are a suspicion against ourselves: a broken decoder would call every video broken. Then a clip
that is known to be sound has to be decoded before anything more is judged.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum

from pipeline.errors import Reason, VideosieveError
from workers.breaker import Breaker
from workers.logs import get_logger
from workers.metrics import Metrics

SUSPICIOUS_AFTER, SUSPICIOUS_SHARE = 20, 0.8
"""Of the last so many videos, so many rejected: more than honest senders ever produce."""
TRUST_S = 600.0
"""How long rejections are believed after the known clip was decoded: one sender's rubbish must not hold all up."""
_LOOK_S = 0.2


class Dependency(StrEnum):
    STORE = "store"
    QUEUE = "queue"
    DATABASE = "database"
    MODELS = "models"
    DECODING = "decoding"
    ENGINE = "engine"


_AT_FAULT = {
    Reason.STORE_UNAVAILABLE: Dependency.STORE,
    Reason.THROTTLED: Dependency.STORE,
    Reason.FORBIDDEN: Dependency.STORE,
    Reason.QUEUE_UNAVAILABLE: Dependency.QUEUE,
    Reason.DATABASE_UNAVAILABLE: Dependency.DATABASE,
    Reason.MODEL_UNAVAILABLE: Dependency.MODELS,
    Reason.MACHINE_FULL: Dependency.DECODING,
    Reason.INTERNAL_ERROR: Dependency.DECODING,
    Reason.VLM_UNAVAILABLE: Dependency.ENGINE,
}

Probe = Callable[[], None]
"""Uses a dependency as the work would. Raises what is wrong with it."""


class Suspicion:
    """Whether too many of the last videos were rejected. Pure."""

    def __init__(self, *, after: int = SUSPICIOUS_AFTER, share: float = SUSPICIOUS_SHARE) -> None:
        self._outcomes: deque[bool] = deque(maxlen=after)
        self._share = share

    def saw(self, *, rejected: bool) -> bool:
        """Take note of one video; True when there is reason for suspicion."""
        self._outcomes.append(rejected)
        is_full = len(self._outcomes) == self._outcomes.maxlen
        return is_full and sum(self._outcomes) >= self._share * len(self._outcomes)

    def forget(self) -> None:
        self._outcomes.clear()


class Breakers:
    """One breaker for each dependency that has a probe, and the thread that probes those that are open."""

    def __init__(
        self,
        probes: Mapping[Dependency, Probe],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait_first_s: float = 1.0,
    ) -> None:
        self._probes = dict(probes)
        self._metrics = metrics
        self._clock = clock
        self._breakers = {
            dependency: Breaker(dependency.value, clock=clock, wait_first_s=wait_first_s) for dependency in probes
        }
        self._suspicion = Suspicion()
        self._trusted_until_s = -TRUST_S
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._has_open = threading.Event()
        for dependency in probes:
            metrics.breaker_open.labels(dependency=dependency.value).set(0)
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._thread.start()

    def is_open(self) -> bool:
        """Whether work may flow: every breaker is closed."""
        return all(breaker.is_closed for breaker in self._breakers.values())

    def troubles(self) -> dict[str, str]:
        """What is wrong, by dependency; empty where work may flow."""
        return {breaker.name: breaker.why for breaker in self._breakers.values() if not breaker.is_closed}

    def saw(self, error: VideosieveError) -> None:
        """Take note of an error; those that are nobody's video's fault count against their dependency."""
        dependency = _AT_FAULT.get(error.reason)
        breaker = self._breakers.get(dependency) if dependency else None
        if breaker is not None and breaker.failed(f"{error.reason.value}: {error.detail}"):
            self._opened(breaker)

    def worked(self, *, rejected: bool = False) -> None:
        """Take note of a video that went all the way: every dependency was used and worked."""
        for dependency, breaker in self._breakers.items():
            if not (rejected and dependency in {Dependency.MODELS, Dependency.DECODING}):
                breaker.worked()
        with self._lock:
            is_suspicious = self._suspicion.saw(rejected=rejected) and self._clock() >= self._trusted_until_s
        decoding = self._breakers.get(Dependency.DECODING)
        if is_suspicious and decoding is not None and decoding.trip("nearly every video was rejected lately"):
            self._opened(decoding)

    def close(self) -> None:
        self._stop.set()
        self._has_open.set()
        self._thread.join()

    def _opened(self, breaker: Breaker) -> None:
        get_logger().error("breaker_opened", dependency=breaker.name, why=breaker.why)
        self._metrics.breaker_open.labels(dependency=breaker.name).set(1)
        self._metrics.breaker_trips.labels(dependency=breaker.name).inc()
        self._has_open.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._has_open.wait()
            self._has_open.clear()
            while not self.is_open() and not self._stop.wait(_LOOK_S):
                for dependency, breaker in self._breakers.items():
                    if not breaker.is_closed and breaker.may_pass():
                        self._probe(dependency, breaker)

    def _probe(self, dependency: Dependency, breaker: Breaker) -> None:
        try:
            self._probes[dependency]()
        except VideosieveError as error:
            breaker.failed(f"{error.reason.value}: {error.detail}")
            get_logger().warning(
                "probe_failed", dependency=breaker.name, reason=error.reason.value, detail=error.detail
            )
            return
        except (OSError, MemoryError) as error:
            breaker.failed(str(error))
            get_logger().warning("probe_failed", dependency=breaker.name, detail=str(error))
            return
        open_for_s = breaker.open_for_s()
        if breaker.succeeded():
            if dependency is Dependency.DECODING:
                with self._lock:
                    self._suspicion.forget()
                    self._trusted_until_s = self._clock() + TRUST_S
            get_logger().warning("breaker_closed", dependency=breaker.name, open_for_s=round(open_for_s, 1))
            self._metrics.breaker_open.labels(dependency=breaker.name).set(0)
