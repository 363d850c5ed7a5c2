"""The engine as the judging worker uses it: limited, measured, and watched for going wrong.

Wraps a client: every request, the canary's too, goes through one limiter and is counted here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pipeline.cascade.vlm_part import VlmPart
from pipeline.chat import AnswerError, ChatReply, ChatRequest, Engine
from pipeline.errors import Reason, TransientError, VideosieveError
from pipeline.vlm.canary import canary_request, canary_score
from workers.limiter import AdaptiveLimiter
from workers.logs import get_logger
from workers.metrics import Metrics


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


class Watch(Protocol):
    """Takes note of what is wrong: `workers.breakers.Breakers`."""

    def saw(self, error: VideosieveError) -> None: ...

    def is_open(self) -> bool: ...


class Canary:
    """The known-answer pictures, which say whether the engine or a video is at fault. Thread-safe.

    They are asked of the model of the VLM stage that was last used, as that stage asks: as many and as large pictures.
    """

    def __init__(
        self,
        engine: Engine,
        stage: VlmPart | None,
        metrics: Metrics,
        *,
        least: float,
        logprobs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._stage = stage
        self._metrics = metrics
        self._least = least
        self._logprobs = logprobs
        self._clock = clock
        self._worked_s: dict[str, float] = {}

    def uses(self, stage: VlmPart) -> float:
        """The engine is about to be asked as `stage` asks; the time, to be given back to `vouch`."""
        self._stage = stage
        return self._clock()

    def worked(self, stage: VlmPart) -> None:
        """The stage's model gave an answer that is of use."""
        self._worked_s[stage.model] = self._clock()

    def vouch(self, stage: VlmPart, since_s: float) -> None:
        """Return where the engine works: it gave the stage an answer of use after `since_s`, or does when asked now.

        Raises as `look` does.
        """
        if self._worked_s.get(stage.model, float("-inf")) < since_s:
            self.look(stage)

    def look(self, stage: VlmPart | None = None) -> None:
        """Ask once, as `stage` or else the one that was last used asks. Raises TransientError(VLM_UNAVAILABLE) for an
        engine that is down, gives no usable answer, or knows less than `least`."""
        stage = stage or self._stage
        if stage is None:
            return
        request = canary_request(stage.model, stage.images, stage.sampling, logprobs=self._logprobs)
        try:
            score = canary_score(self._engine.complete(request), stage.images)
        except AnswerError as error:
            self._metrics.vlm_canary_score.set(0)
            raise TransientError(
                Reason.VLM_UNAVAILABLE, f"the known-answer pictures get no usable answer: {error.detail}"
            ) from error
        self._metrics.vlm_canary_score.set(score)
        get_logger().info("vlm_canary", score=round(score, 3))
        if score < self._least:
            raise TransientError(
                Reason.VLM_UNAVAILABLE,
                f"the engine answers {score:.0%} of the known questions right, and "
                f"VIDEOSIEVE_VLM__CANARY_LEAST wants {self._least:.0%}: is {stage.model} the right model?",
            )
        self.worked(stage)

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
