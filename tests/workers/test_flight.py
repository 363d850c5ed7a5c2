from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from pipeline.errors import FatalError, Reason, TransientError, VideosieveError
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
    ledger, held = FakeLedger(), claim()
    ledger.lost.add((held.run_id, held.fence))
    with capture_logs() as entries:
        flights = Flights(ledger, Metrics(CollectorRegistry()), lease_s=LEASE_S)
        one, other = flight(queue, "lost"), flight(queue, "other")
        with one.holding(held):
            flights.add(one)
            flights.add(other)
            wait_until(lambda: one.is_lost, "the loss is seen")
            hidden = queue.hidden.count(("lost", LEASE_S))
            beats = len(queue.hidden)
            wait_until(lambda: len(queue.hidden) >= beats + 3, "beats go on")
            assert queue.hidden.count(("lost", LEASE_S)) <= hidden + 1
        flights.close()
    assert [entry["event"] for entry in entries] == ["lease_lost"]


def test_a_flight_whose_lease_was_lost_is_kept_alive_again_with_its_next_claim(queue: FakeQueue) -> None:
    one = flight(queue)
    one.is_lost = True
    with one.holding(claim()):
        assert not one.is_lost


def test_all_leases_are_renewed_by_one_statement_and_ten_messages_by_one_request() -> None:
    all_are_in = threading.Event()

    class Waiting(FakeLedger):
        def renew_many(self, held: Sequence[tuple[UUID, int]], lease_s: float) -> set[tuple[UUID, int]]:
            assert all_are_in.wait(5)
            return super().renew_many(held, lease_s)

    ledger, queue = Waiting(), FakeQueue("uploads")
    flights = Flights(ledger, Metrics(CollectorRegistry()), lease_s=LEASE_S)
    for number in range(12):
        one = flight(queue, str(number))
        one.claim = claim(fence=number)
        flights.add(one)
    all_are_in.set()
    wait_until(lambda: 12 in queue.hides, "a beat for all")
    flights.close()
    assert len(ledger.renewed) >= 12
    assert ledger.beats < len(ledger.renewed)


def test_a_message_that_will_not_come_to_others_soon_costs_no_request(queue: FakeQueue, ledger: FakeLedger) -> None:
    flights = Flights(ledger, Metrics(CollectorRegistry()), lease_s=0.3)
    soon, later = flight(queue, "soon"), flight(queue, "later")
    later.hidden_until_s = time.monotonic() + 60
    flights.add(later)
    flights.add(soon)
    wait_until(lambda: len(queue.hidden) >= 2, "two beats")
    flights.close()
    assert bodies(queue) == {"soon"}


def test_no_beat_under_way_touches_a_message_once_it_has_landed(queue: FakeQueue, ledger: FakeLedger) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(FakeQueue):
        def hide_many(self, messages: Sequence[Message], seconds: float) -> list[Message]:
            entered.set()
            assert leave.wait(5)
            return super().hide_many(messages, seconds)

    slow = Slow("slow")
    flights = Flights(ledger, Metrics(CollectorRegistry()), lease_s=LEASE_S)
    one = flight(slow)
    flights.add(one)
    assert entered.wait(5)
    lander = threading.Thread(target=flights.land, args=[one])
    lander.start()
    lander.join(0.05)
    assert lander.is_alive()  # waits for the beat
    leave.set()
    lander.join(5)
    assert not lander.is_alive()
    hidden = len(slow.hidden)
    time.sleep(3 * LEASE_S)
    assert len(slow.hidden) == hidden == 1
    flights.close()


@pytest.mark.parametrize(
    "error",
    [
        TransientError(Reason.DATABASE_UNAVAILABLE, "down"),
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
            wait_until(lambda: bodies(queue) == {"failing", "other"}, "both messages are kept alive")
            wait_until(lambda: len(ledger.renewed) >= 4, "the lease is renewed again")
        flights.close()


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


def test_a_message_that_sqs_refuses_to_hide_is_not_taken_for_hidden(flights: Flights, queue: FakeQueue) -> None:
    queue.refuses = {"refused"}
    one, other = flight(queue, "refused"), flight(queue, "b")
    with capture_logs() as entries:
        flights.add(one)
        flights.add(other)
        wait_until(lambda: ("b", LEASE_S) in queue.hidden, "a beat")
        wait_until(lambda: other.hidden_until_s > 0, "its outcome")
    assert one.hidden_until_s == 0
    assert "messages_not_hidden" in {entry["event"] for entry in entries}


def test_nothing_that_is_given_back_is_hidden_again_by_a_beat_under_way() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(FakeQueue):
        def hide_many(self, messages: Sequence[Message], seconds: float) -> list[Message]:
            entered.set()
            assert leave.wait(5)
            return super().hide_many(messages, seconds)

    slow = Slow("slow")
    flights = Flights(FakeLedger(), Metrics(CollectorRegistry()), lease_s=LEASE_S)
    flights.add(flight(slow))
    assert entered.wait(5)
    giver = threading.Thread(target=flights.give_back)
    giver.start()
    leave.set()
    giver.join(5)
    assert not giver.is_alive()
    flights.close()
    assert slow.hidden == [("a", LEASE_S), ("a", 0)]


def test_giving_back_does_not_wait_for_a_beat_that_hangs() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Hanging(FakeQueue):
        def hide_many(self, messages: Sequence[Message], seconds: float) -> list[Message]:
            entered.set()
            leave.wait(10)
            return super().hide_many(messages, seconds)

    hanging = Hanging("hanging")
    flights = Flights(FakeLedger(), Metrics(CollectorRegistry()), lease_s=LEASE_S)
    flights.add(flight(hanging))
    assert entered.wait(5)
    flights.give_back()
    assert hanging.hidden == [("a", 0)]
    leave.set()
    flights.close()
