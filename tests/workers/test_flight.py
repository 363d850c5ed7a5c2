from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from pipeline.errors import FatalError, LeaseLostError, Reason, TransientError, VideosieveError
from pipeline.runs import Lane
from pipeline.stores.queue import Message
from tests.workers.fakes import FakeLedger, FakeQueue, claim, wait_until
from workers.flight import BEATS_PER_LEASE, Flight, Flights
from workers.metrics import Metrics

LEASE_S = 0.06


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue("uploads")


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()


@pytest.fixture
def flights(ledger: FakeLedger) -> Iterator[Flights]:
    opened = Flights(ledger, Metrics(CollectorRegistry()), lease_s=LEASE_S)
    yield opened
    opened.close()


def flight(queue: FakeQueue, body: str = "a") -> Flight:
    return Flight(Message(body, body, "receipt", 1, datetime.now(UTC)), queue, Lane.UPLOADS)


def bodies(queue: FakeQueue) -> set[str]:
    return {body for body, _ in queue.hidden}


def test_a_message_in_flight_is_kept_hidden_for_another_lease_again_and_again(
    flights: Flights, queue: FakeQueue
) -> None:
    flights.add(flight(queue))
    wait_until(lambda: len(queue.hidden) >= 3, "three beats")
    assert set(queue.hidden) == {("a", LEASE_S)}


def test_the_heart_beats_often_enough_that_two_beats_may_fail(flights: Flights, queue: FakeQueue) -> None:
    flights.add(flight(queue))
    started_s = time.monotonic()
    wait_until(lambda: bool(queue.hidden), "the first beat")
    assert time.monotonic() - started_s < 2 * LEASE_S
    assert BEATS_PER_LEASE == 3


def test_the_lease_of_a_claimed_run_is_renewed_with_its_fence_while_it_is_held(
    flights: Flights, queue: FakeQueue, ledger: FakeLedger
) -> None:
    one, held = flight(queue), claim(fence=7)
    flights.add(one)
    with one.holding(held):
        wait_until(lambda: len(ledger.renewed) >= 2, "two renewals")
    assert set(ledger.renewed) == {(held.run_id, 7, LEASE_S)}
    assert one.claim is None
    count, beats = len(ledger.renewed), len(queue.hidden)
    wait_until(lambda: len(queue.hidden) >= beats + 2, "beats go on")
    assert len(ledger.renewed) <= count + 1


def test_a_claim_is_let_go_when_the_work_fails(queue: FakeQueue) -> None:
    one = flight(queue)
    with pytest.raises(ZeroDivisionError), one.holding(claim()):
        raise ZeroDivisionError
    assert one.claim is None


def test_a_landing_message_is_left_to_whoever_settles_it(flights: Flights, queue: FakeQueue) -> None:
    landing, flying = flight(queue, "landing"), flight(queue, "flying")
    landing.is_landing = True
    flights.add(landing)
    flights.add(flying)
    wait_until(lambda: len(queue.hidden) >= 3, "three beats")
    assert bodies(queue) == {"flying"}


def test_a_landed_message_is_kept_alive_no_longer(flights: Flights, queue: FakeQueue) -> None:
    one = flight(queue)
    flights.add(one)
    wait_until(lambda: bool(queue.hidden), "the first beat")
    flights.remove(one)
    flights.remove(one)  # twice is as good as once
    time.sleep(LEASE_S)
    count = len(queue.hidden)
    time.sleep(2 * LEASE_S)
    assert len(queue.hidden) == count
    assert len(flights) == 0


def test_a_lost_lease_hides_the_message_no_more_and_is_logged(queue: FakeQueue) -> None:
    ledger = FakeLedger(*[LeaseLostError("taken over")] * 1000)
    with capture_logs() as entries:
        flights = Flights(ledger, Metrics(CollectorRegistry()), lease_s=LEASE_S)
        one = flight(queue)
        with one.holding(claim()):
            flights.add(one)
            wait_until(lambda: len(ledger.renewed) >= 2, "two beats")
            assert queue.hidden == []
        flights.close()
    assert "lease_lost" in {entry["event"] for entry in entries}


@pytest.mark.parametrize(
    "error",
    [
        TransientError(Reason.DATABASE_UNAVAILABLE, "down"),
        LeaseLostError("taken over"),
        FatalError(Reason.SCHEMA_OUTDATED, "upgrade"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_beat_that_fails_stops_neither_the_heart_nor_the_other_flights(
    queue: FakeQueue, error: VideosieveError
) -> None:
    ledger = FakeLedger(*[error] * 3)
    with capture_logs():
        flights = Flights(ledger, Metrics(CollectorRegistry()), lease_s=LEASE_S)
        failing, other = flight(queue, "failing"), flight(queue, "other")
        with failing.holding(claim()):
            flights.add(failing)
            flights.add(other)
            wait_until(lambda: bodies(queue) == {"failing", "other"}, "both are kept alive again")
        flights.close()
    assert len(ledger.renewed) >= 4


def test_a_queue_that_fails_does_not_stop_the_heart(flights: Flights, queue: FakeQueue) -> None:
    queue.faults["hide"] = [
        TransientError(Reason.QUEUE_UNAVAILABLE, "down"),
        FatalError(Reason.BAD_SETTING, "there is no queue"),
    ]
    with capture_logs():
        flights.add(flight(queue))
        wait_until(lambda: len(queue.hidden) >= 2, "beats go on")


def test_closing_ends_the_heartbeat_at_once_also_with_a_long_lease() -> None:
    started_s = time.monotonic()
    flights = Flights(FakeLedger(), Metrics(CollectorRegistry()), lease_s=3600)
    flights.close()
    assert time.monotonic() - started_s < 2


def test_waiting_for_a_free_place_ends_when_one_lands_or_the_time_is_over(flights: Flights, queue: FakeQueue) -> None:
    one = flight(queue)
    assert flights.wait_below(1, timeout_s=0)
    flights.add(one)
    assert not flights.wait_below(1, timeout_s=0.01)
    threading.Timer(0.02, flights.remove, [one]).start()
    assert flights.wait_below(1, timeout_s=5)


def test_flights_are_told_apart_by_identity_not_by_content(flights: Flights, queue: FakeQueue) -> None:
    flights.add(flight(queue))
    flights.add(flight(queue))
    assert len(flights) == len(flights.snapshot()) == 2


def test_giving_back_returns_runs_and_messages_at_once_whatever_fails(queue: FakeQueue) -> None:
    ledger = FakeLedger(TransientError(Reason.DATABASE_UNAVAILABLE, "down"))
    flights = Flights(ledger, Metrics(CollectorRegistry()), lease_s=3600)
    held, other = claim(fence=7), claim(fence=8)
    claimed, unclaimed, later = flight(queue, "claimed"), flight(queue, "unclaimed"), flight(queue, "later")
    with claimed.holding(held), later.holding(other), capture_logs() as entries:
        for one in (claimed, unclaimed, later):
            flights.add(one)
        flights.give_back()
    assert sorted(ledger.released, key=lambda released: released[1]) == [
        (held.run_id, 7, Reason.GIVEN_BACK, False, 0),
        (other.run_id, 8, Reason.GIVEN_BACK, False, 0),
    ]
    assert len(queue.hidden) == 2  # the message whose run could not be released waits for the lease's end
    assert {hidden_s for _, hidden_s in queue.hidden} == {0}
    assert [entry["event"] for entry in entries] == ["give_back_failed"]
    assert claimed.is_landing  # so that the heartbeat hides nothing again
    assert unclaimed.is_landing
    flights.close()
