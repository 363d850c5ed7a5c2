from __future__ import annotations

import pytest

from workers.limiter import DECREASE, START, AdaptiveLimiter


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def answer(limiter: AdaptiveLimiter, count: int, ttft_s: float = 0.1) -> None:
    """`count` requests at once, all answered."""
    for started_s in [limiter.begin() for _ in range(count)]:
        limiter.answered(started_s, ttft_s)


def test_it_grows_by_about_one_a_round_while_it_is_used_up(clock: Clock) -> None:
    limiter = AdaptiveLimiter(most=64, ttft_goal_s=1, clock=clock)
    for _ in range(10):
        started = [limiter.begin() for _ in range(int(limiter.limit))]
        before = limiter.limit
        for started_s in started:  # the next ones begin as these end: it stays full
            limiter.begin()
            limiter.answered(started_s, 0.1)
        for _ in started:
            limiter.dropped()
        assert before + 0.7 < limiter.limit < before + 1.3


def test_it_does_not_grow_on_what_does_not_fill_it(clock: Clock) -> None:
    limiter = AdaptiveLimiter(most=64, ttft_goal_s=1, clock=clock)
    answer(limiter, 1)
    assert limiter.limit == START


def test_it_never_exceeds_what_is_allowed(clock: Clock) -> None:
    limiter = AdaptiveLimiter(most=3, ttft_goal_s=1, clock=clock)
    for _ in range(100):
        answer(limiter, 3)
    assert limiter.limit == 3
    assert limiter.may_begin(2)
    assert not limiter.may_begin(3)


def test_a_late_first_token_lowers_it_once_for_all_that_were_under_way(clock: Clock) -> None:
    limiter = AdaptiveLimiter(most=64, ttft_goal_s=1, clock=clock)
    started = [limiter.begin() for _ in range(4)]
    clock.now_s += 5
    for started_s in started:
        limiter.answered(started_s, 4.0)
    assert limiter.limit == pytest.approx(START * DECREASE)
    started_s = limiter.begin()
    limiter.answered(started_s, 4.0)
    assert limiter.limit == pytest.approx(START * DECREASE * DECREASE)


def test_it_never_falls_below_one(clock: Clock) -> None:
    limiter = AdaptiveLimiter(most=64, ttft_goal_s=1, clock=clock)
    for _ in range(50):
        clock.now_s += 1
        limiter.overloaded(limiter.begin())
    assert limiter.limit == 1.0
    assert limiter.may_begin(0)


def test_retry_after_is_kept_and_a_shorter_one_does_not_shorten_it(clock: Clock) -> None:
    limiter = AdaptiveLimiter(most=8, ttft_goal_s=1, clock=clock)
    limiter.overloaded(limiter.begin(), retry_after_s=30, pause=True)
    limiter.overloaded(limiter.begin(), pause=True)
    assert not limiter.may_begin(0)
    assert limiter.paused_s() == 30
    clock.now_s += 29.9
    assert not limiter.may_begin(0)
    clock.now_s += 0.2
    assert limiter.may_begin(0)
    assert limiter.paused_s() == 0


def test_what_says_nothing_about_the_load_changes_nothing(clock: Clock) -> None:
    limiter = AdaptiveLimiter(most=8, ttft_goal_s=1, clock=clock)
    limiter.begin()
    limiter.dropped()
    assert (limiter.limit, limiter.in_flight) == (START, 0)


def test_no_request_at_all_is_no_limit() -> None:
    with pytest.raises(ValueError, match="at least one"):
        AdaptiveLimiter(most=0, ttft_goal_s=1)
