from __future__ import annotations

import json
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from pipeline.chat import AnswerError, ChatReply, ChatRequest, Timing, Usage
from pipeline.errors import Reason, TransientError
from pipeline.vlm.canary import FACTS, canary_request
from tests.vlm.server import statement
from workers.asking import OWN_FAULT_DELIVERIES, OWN_FAULT_WINDOW_S, WRONG_AFTER, Canary, LimitedEngine, Record
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


REQUEST = canary_request("m", logprobs=False)
BUSY = TransientError(Reason.VLM_BUSY, "slow down", retry_after_s=30)


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


def test_unusable_answers_in_a_row_are_the_engines_fault_and_one_good_one_clears_it() -> None:
    record = Record()
    assert [record.unusable() for _ in range(WRONG_AFTER - 1)] == [False] * (WRONG_AFTER - 1)
    record.usable()
    assert [record.unusable() for _ in range(WRONG_AFTER)] == [False] * (WRONG_AFTER - 1) + [True]
    assert not record.unusable()  # the count begins anew


def test_a_video_is_given_up_only_when_it_fails_often_while_others_go_well() -> None:
    clock = Clock()
    bad, others = uuid4(), [uuid4() for _ in range(3)]
    record = Record(clock)
    record.went(bad, well=False)
    assert not record.is_own_fault(bad, OWN_FAULT_DELIVERIES)  # nobody else was asked about
    for other in others:
        record.went(other, well=True)
    assert record.is_own_fault(bad, OWN_FAULT_DELIVERIES)
    assert not record.is_own_fault(bad, OWN_FAULT_DELIVERIES - 1)
    record.went(others[0], well=False)  # an outage
    assert not record.is_own_fault(bad, OWN_FAULT_DELIVERIES)
    clock.now_s += OWN_FAULT_WINDOW_S + 1
    assert not record.is_own_fault(bad, OWN_FAULT_DELIVERIES)  # too long ago to tell


def answers(right: int) -> ChatReply:
    found = {}
    for number, fact in enumerate(FACTS):
        says_yes = fact.is_true == (number < right)
        found[fact.question] = statement("yes", 90, [0]) if says_yes else statement()
    return reply(json.dumps({"seen": "", "answers": found}))


def test_the_canary_scores_the_share_of_known_answers(metrics: Metrics) -> None:
    for right in (8, 4, 0):
        Canary(Scripted([answers(right)]), "m", metrics, least=0.0).look()
        assert metrics.registry.get_sample_value("videosieve_vlm_canary_ratio") == right / 8


def test_a_canary_below_the_least_and_one_without_an_answer_say_that_the_engine_is_wrong(metrics: Metrics) -> None:
    with pytest.raises(TransientError, match="is m the right model"):
        Canary(Scripted([answers(4)]), "m", metrics, least=0.75).look()
    with pytest.raises(TransientError, match="no usable answer"):
        Canary(Scripted([reply("hello")]), "m", metrics, least=0.0).look()
    assert metrics.registry.get_sample_value("videosieve_vlm_canary_ratio") == 0
