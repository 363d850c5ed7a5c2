"""The engine as the judging worker uses it: limited, measured, and watched for going wrong.

Wraps a client: every request, the canary's too, goes through one limiter and is counted here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from pipeline.chat import AnswerError, ChatReply, ChatRequest, Engine
from pipeline.errors import Reason, TransientError, VideosieveError
from pipeline.vlm.canary import canary_request, canary_score
from workers.limiter import AdaptiveLimiter
from workers.logs import get_logger
from workers.metrics import Metrics

WRONG_AFTER = 5
"""So many unusable answers in a row are the engine's fault: no five videos in a row are that odd."""
OWN_FAULT_DELIVERIES, OWN_FAULT_OTHERS, OWN_FAULT_WINDOW_S = 6, 3, 120.0
"""A video that failed this often, while so many others went well and none failed, makes the engine fail by itself."""


@dataclass(frozen=True, slots=True)
class LimitedEngine:
    """`pipeline.chat.Engine` under the limiter, with metrics."""

    client: Engine
    limiter: AdaptiveLimiter
    metrics: Metrics

    def complete(self, request: ChatRequest) -> ChatReply:
        started_s = self.limiter.begin()
        try:
            reply = self.client.complete(request)
        except TransientError as error:
            self.limiter.overloaded(
                started_s,
                retry_after_s=error.retry_after_s,
                pause=error.reason is Reason.VLM_BUSY or error.retry_after_s is not None,
            )
            self._ended(error.reason.value)
            raise
        except AnswerError as error:
            self.limiter.dropped()
            self._ended(error.reason.value)
            raise
        except BaseException:
            self.limiter.dropped()
            raise
        self.limiter.answered(started_s, reply.timing.ttft_s)
        self._ended("answered")
        self._measure(reply)
        return reply

    def _ended(self, outcome: str) -> None:
        self.metrics.vlm_requests.labels(outcome=outcome).inc()
        self.metrics.vlm_limit.set(int(self.limiter.limit))

    def _measure(self, reply: ChatReply) -> None:
        self.metrics.vlm_ttft.observe(reply.timing.ttft_s)
        if reply.usage is not None:
            tpot_s = reply.timing.tpot_s(reply.usage.completion_tokens)
            if tpot_s is not None:
                self.metrics.vlm_tpot.observe(tpot_s)


@dataclass(slots=True)
class Record:
    """How the last videos fared with the engine. Thread-safe, pure but for the clock."""

    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: deque[tuple[float, UUID, bool]] = field(default_factory=lambda: deque(maxlen=200))
    _unusable: int = 0

    def went(self, run_id: UUID, *, well: bool) -> None:
        """The engine answered (or not) about a run."""
        with self._lock:
            self._last.append((self.clock(), run_id, well))

    def unusable(self) -> bool:
        """An answer was no use; True when too many in a row were. Then the count begins anew."""
        with self._lock:
            self._unusable = (self._unusable + 1) % WRONG_AFTER
            return self._unusable == 0

    def usable(self) -> None:
        with self._lock:
            self._unusable = 0

    def is_own_fault(self, run_id: UUID, deliveries: int) -> bool:
        """Whether it is this video that makes the engine fail, and not the engine."""
        with self._lock:
            since_s = self.clock() - OWN_FAULT_WINDOW_S
            others = [well for at_s, of, well in self._last if at_s >= since_s and of != run_id]
        return deliveries >= OWN_FAULT_DELIVERIES and len(others) >= OWN_FAULT_OTHERS and all(others)


class Watch(Protocol):
    """Takes note of what is wrong: `workers.breakers.Breakers`."""

    def saw(self, error: VideosieveError) -> None: ...

    def is_open(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Canary:
    """Sends the known-answer pictures: on a schedule (`run`), and when the engine is to be tried (`look`)."""

    engine: Engine
    model: str
    metrics: Metrics
    least: float

    def look(self) -> None:
        """Ask once. Raises TransientError(VLM_UNAVAILABLE) for an engine that is down, gives no usable answer, or
        knows less than `least`."""
        try:
            score = canary_score(self.engine.complete(canary_request(self.model, logprobs=False)))
        except AnswerError as error:
            self.metrics.vlm_canary_score.set(0)
            raise TransientError(
                Reason.VLM_UNAVAILABLE, f"the known-answer pictures get no usable answer: {error.detail}"
            ) from error
        self.metrics.vlm_canary_score.set(score)
        get_logger().info("vlm_canary", score=round(score, 3))
        if score < self.least:
            raise TransientError(
                Reason.VLM_UNAVAILABLE,
                f"the engine answers {score:.0%} of the known questions right, and "
                f"VIDEOSIEVE_VLM__CANARY_LEAST wants {self.least:.0%}: is {self.model} the right model?",
            )

    def run(self, stopping: threading.Event, every_s: float, watch: Watch) -> None:
        """Look at once and every `every_s` until `stopping`, but not while a breaker is open: that has a probe. What is
        found wrong is reported to `watch`."""
        while True:
            if watch.is_open():
                try:
                    self.look()
                except TransientError as error:
                    get_logger().warning("vlm_canary_failed", reason=error.reason.value, detail=error.detail)
                    watch.saw(error)
            if stopping.wait(every_s):
                return
