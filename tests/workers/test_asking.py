from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from pipeline.cascade.vlm_part import ImagesPart, SamplingPart, VlmAnswer, VlmPart
from pipeline.chat import AnswerError, ChatReply, ChatRequest, Timing, Usage
from pipeline.errors import Reason, TransientError
from pipeline.vlm.canary import canary_request, facts
from tests.vlm.server import statement
from workers.asking import Canary, LimitedEngine
from workers.limiter import START, AdaptiveLimiter
from workers.metrics import Metrics


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def reply(text: str) -> ChatReply:
    return ChatReply(text, "stop", None, Usage(100, 50, 11), Timing(0.5, 1.5))


@dataclass
class Scripted:
    """An engine that says or raises what it is given, one after the other."""

    script: list[ChatReply | Exception]
    requests: list[ChatRequest] = field(default_factory=list)

    def complete(self, request: ChatRequest) -> ChatReply:
        self.requests.append(request)
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def limited(metrics: Metrics, *script: ChatReply | Exception) -> LimitedEngine:
    return LimitedEngine(Scripted(list(script)), AdaptiveLimiter(most=8, ttft_goal_s=10), metrics)


REQUEST = canary_request("m", ImagesPart(), SamplingPart(), logprobs=False)
BUSY = TransientError(Reason.VLM_BUSY, "slow down", retry_after_s=30)
ASKED = VlmAnswer(wording="?", positive_at=0.8, negative_at=0.2)
STAGE = VlmPart(name="judge", model="m", prompt="Look.", answers={"q": ASKED})


def test_a_429_pauses_the_limiter_and_an_answer_is_measured(metrics: Metrics) -> None:
    engine = limited(metrics, reply("x"), BUSY)
    engine.complete(REQUEST)
    with pytest.raises(TransientError):
        engine.complete(REQUEST)
    assert engine.limiter.in_flight == 0
    assert 29 < engine.limiter.paused_s() <= 30
    value = metrics.registry.get_sample_value
    assert value("videosieve_vlm_requests_total", {"outcome": "answered"}) == 1
    assert value("videosieve_vlm_requests_total", {"outcome": "vlm_busy"}) == 1
    assert value("videosieve_vlm_ttft_seconds_sum") == 0.5
    assert value("videosieve_vlm_tpot_seconds_sum") == pytest.approx(0.1)


def test_an_outage_lowers_the_limit_without_a_pause_and_a_bad_answer_does_neither(metrics: Metrics) -> None:
    engine = limited(
        metrics,
        AnswerError(Reason.VLM_BLOCKED, "no"),
        TransientError(Reason.VLM_UNAVAILABLE, "down"),
        ValueError("bug"),
    )
    with pytest.raises(AnswerError):
        engine.complete(REQUEST)
    assert engine.limiter.limit == START
    with pytest.raises(TransientError):
        engine.complete(REQUEST)
    assert engine.limiter.limit < START
    assert engine.limiter.may_begin(0)
    with pytest.raises(ValueError, match="bug"):
        engine.complete(REQUEST)
    assert engine.limiter.in_flight == 0


def answers(right: int, images: ImagesPart | None = None) -> ChatReply:
    found = {}
    for number, fact in enumerate(facts(images or ImagesPart())):
        says_yes = fact.is_true == (number < right)
        found[fact.question] = statement("yes", 90, [0]) if says_yes else statement()
    return reply(json.dumps({"seen": "", "answers": found}))


def canary(metrics: Metrics, *script: ChatReply | Exception, stage: VlmPart | None = STAGE, least: float = 0) -> Canary:
    return Canary(Scripted(list(script)), stage, metrics, least=least)


def test_the_canary_scores_the_share_of_known_answers(metrics: Metrics) -> None:
    for right in (8, 4, 0):
        canary(metrics, answers(right)).look()
        assert metrics.registry.get_sample_value("videosieve_vlm_canary_ratio") == right / 8


def test_a_canary_below_the_least_and_one_without_an_answer_say_that_the_engine_is_wrong(metrics: Metrics) -> None:
    with pytest.raises(TransientError, match="is m the right model"):
        canary(metrics, answers(4), least=0.75).look()
    with pytest.raises(TransientError, match="no usable answer"):
        canary(metrics, reply("hello")).look()
    assert metrics.registry.get_sample_value("videosieve_vlm_canary_ratio") == 0


def test_the_canary_is_asked_as_the_last_used_stage_asks(metrics: Metrics) -> None:
    """As many pictures, of as many pixels, with the same parameters: an engine that refuses these refuses all."""
    images = ImagesPart(max_images=1, max_pixels=100_000, max_image_tokens=4096)
    stage = VlmPart(
        name="judge",
        model="other",
        prompt="Look.",
        answers={"q": ASKED},
        images=images,
        sampling=SamplingPart(top_k=5, max_tokens=16),
    )
    engine = Scripted([answers(2, images)])
    looks = Canary(engine, STAGE, metrics, least=1.0, logprobs=True)
    looks.uses(stage)
    looks.look()
    (request,) = engine.requests
    assert (request.model, request.logprobs, request.sampling.top_k) == ("other", True, 5)
    assert request.sampling.max_tokens == 512  # enough for the questions asked here
    assert len(request.images) == 1


def test_without_a_stage_there_is_nothing_to_look_at(metrics: Metrics) -> None:
    canary(metrics, stage=None).look()


def test_an_engine_that_just_answered_is_vouched_for_without_asking_it(metrics: Metrics) -> None:
    clock, engine = Clock(), Scripted([answers(8), reply("hello")])
    looks = Canary(engine, STAGE, metrics, least=0, clock=clock)
    began_s = looks.uses(STAGE)
    clock.now_s += 1
    looks.worked(STAGE)  # another video's answer, that came in between
    looks.vouch(STAGE, began_s)
    assert engine.requests == []
    clock.now_s += 1
    looks.vouch(STAGE, looks.uses(STAGE))
    assert len(engine.requests) == 1
    clock.now_s += 1
    with pytest.raises(TransientError, match="no usable answer"):
        looks.vouch(STAGE, looks.uses(STAGE))
