from __future__ import annotations

import threading

import pytest

from workers.breaker import ATTEMPT_S, STEADY_S, Breaker, BreakerState


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock, *, trips_at: int = 3) -> Breaker:
    breaker = Breaker("store", trips_at=trips_at, wait_first_s=1, wait_max_s=8, clock=clock)
    for _ in range(trips_at):
        breaker.failed("down")
    return breaker


def test_it_opens_at_the_failure_that_makes_the_row_full_and_says_so_once(clock: Clock) -> None:
    breaker = Breaker("store", trips_at=3, clock=clock)
    assert [breaker.failed("down") for _ in range(5)] == [False, False, True, False, False]
    assert (breaker.state, breaker.why) == (BreakerState.OPEN, "down")
    assert not breaker.may_pass()


def test_a_success_in_between_begins_the_row_anew(clock: Clock) -> None:
    breaker = Breaker("store", trips_at=2, clock=clock)
    for _ in range(10):
        assert not breaker.failed("one object is broken")
        assert not breaker.succeeded()
    assert breaker.is_closed
    assert breaker.why == ""


def test_after_the_wait_exactly_one_attempt_passes(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now_s += 0.999
    assert not breaker.may_pass()
    clock.now_s += 0.001
    assert [breaker.may_pass() for _ in range(3)] == [True, False, False]
    assert breaker.state is BreakerState.HALF_OPEN


def test_an_attempt_that_succeeds_closes_it_and_says_so(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now_s += 1
    assert breaker.may_pass()
    assert breaker.open_for_s() == 1
    assert breaker.succeeded()
    assert breaker.is_closed
    assert breaker.open_for_s() == 0
    assert breaker.wait_s() == 0
    assert breaker.failed("down") is False  # the row begins anew


def test_an_attempt_that_fails_doubles_the_wait_up_to_its_bound(clock: Clock) -> None:
    breaker = opened(clock)
    waits = []
    for _ in range(6):
        waits.append(breaker.wait_s())
        clock.now_s += breaker.wait_s()
        assert breaker.may_pass()
        assert not breaker.failed("still down")
    assert waits == [1, 2, 4, 8, 8, 8]


def test_opening_again_soon_after_closing_waits_longer_and_after_a_steady_time_begins_anew(clock: Clock) -> None:
    breaker = opened(clock)
    for _ in range(3):
        clock.now_s += breaker.wait_s()
        assert breaker.may_pass()
        breaker.failed("down")
    clock.now_s += breaker.wait_s()
    assert breaker.may_pass()
    breaker.succeeded()
    for _ in range(3):
        breaker.failed("down again")
    assert breaker.wait_s() == 8
    clock.now_s += breaker.wait_s()
    assert breaker.may_pass()
    breaker.succeeded()
    clock.now_s += STEADY_S
    for _ in range(3):
        breaker.failed("down after a good time")
    assert breaker.wait_s() == 1


def test_it_can_be_tripped_by_one_word(clock: Clock) -> None:
    breaker = Breaker("decoding", trips_at=3, clock=clock)
    assert breaker.trip("everything is rejected")
    assert not breaker.trip("and still is")
    assert breaker.state is BreakerState.OPEN


def test_a_success_of_work_begun_before_it_opened_does_not_close_it(clock: Clock) -> None:
    breaker = opened(clock)
    assert not breaker.succeeded()
    assert breaker.state is BreakerState.OPEN


def test_an_attempt_that_never_reports_does_not_keep_it_open_for_ever(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now_s += 1
    assert breaker.may_pass()
    clock.now_s += ATTEMPT_S
    assert breaker.may_pass()
    assert not breaker.may_pass()


def test_one_attempt_passes_however_many_threads_ask(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now_s += 1
    passed: list[bool] = []
    gate = threading.Barrier(16)

    def ask() -> None:
        gate.wait()
        passed.append(breaker.may_pass())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 1


def test_a_breaker_that_would_be_open_from_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot trip"):
        Breaker("store", trips_at=0)
