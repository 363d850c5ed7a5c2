from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from structlog.testing import capture_logs

from pipeline.disposition import Action, Disposition
from pipeline.errors import FatalError, Reason, TransientError, VideosieveError
from pipeline.events import VideoEvent
from pipeline.stores.queue import Message
from pipeline.verdict import RunState
from tests.workers.fakes import DONE, FakeHandler, FakeQueue, World, own, s3, wait_until
from workers import consumer as consumer_module
from workers.consumer import JITTER, OUTAGE_DELAY_S, RENEW_AT
from workers.flight import Flight
from workers.holding import GLANCE_S, GROWS_AFTER, GROWTH, HOLD_S, MOST_S

TEST_EVENT = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"})
DISPOSITIONS = "videosieve_message_dispositions_total"
OUTAGE = TransientError(Reason.QUEUE_UNAVAILABLE, "down")
FATAL = FatalError(Reason.WEIGHTS_MISSING, "pull them")


def retry(delay_s: float) -> Disposition:
    return Disposition(Action.RETRY, RunState.QUEUED, delay_s)


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
def unswept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped, however slow the machine is: the queues in memory hand nothing out twice."""
    monkeypatch.setattr(consumer_module, "_SWEEP_S", float("inf"))


def test_every_message_is_screened_and_deleted() -> None:
    world = World(uploads=[own("a"), s3("b")], backfill=[own("c")])
    world.consume()
    assert sorted(world.handler.screened) == ["a", "b", "c"]
    assert sorted(world.uploads.deleted) == sorted([own("a"), s3("b")])
    assert world.backfill.deleted == [own("c")]
    assert world.count(DISPOSITIONS, lane="uploads", action="acknowledge") == 2
    assert world.count("videosieve_messages_total", lane="backfill", kind="own") == 1
    assert world.count("videosieve_time_in_queue_seconds_count", lane="uploads") == 2
    assert world.count("videosieve_in_flight_videos") == 0


def test_no_more_messages_are_received_than_there_are_free_threads() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own(str(n)) for n in range(9)], backfill=[own("x")], handler=handler, concurrency=3)
    with world.running():
        wait_until(lambda: handler.running == 3, "three are running")
        time.sleep(0.05)
        assert len(world.uploads.waiting) == 6
        assert world.uploads.asked == [3]
        assert world.count("videosieve_in_flight_videos") == 3
        handler.gate.set()
        world.drain()
    assert handler.most_running == 3
    assert max(world.uploads.asked) <= 3
    assert len(world.uploads.deleted) == 9


def test_never_more_than_ten_are_asked_for_at_once() -> None:
    world = World(uploads=[own(str(n)) for n in range(25)], concurrency=40)
    world.consume()
    assert max(world.uploads.asked) == 10
    assert len(world.uploads.deleted) == 25


def test_uploads_go_first_and_backfill_gets_the_threads_they_leave() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own("u1")], handler=handler, concurrency=1, look_ahead=10)
    with world.running():
        wait_until(lambda: handler.running == 1, "one is running")
        world.backfill.waiting += [own("b1"), own("b2")]
        wait_until(lambda: world.held("backfill") == 2, "backfill waits inside")
        world.uploads.waiting += [own("u2"), own("u3")]
        wait_until(lambda: world.held("uploads") == 2, "uploads wait inside")
        handler.gate.set()
        world.drain()
    assert handler.screened == ["u1", "u2", "u3", "b1", "b2"]


def test_backfill_gets_its_share_of_the_starts_while_uploads_never_end() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(
        uploads=[own(f"u{n}") for n in range(90)],
        backfill=[own(f"b{n}") for n in range(40)],
        handler=handler,
        concurrency=1,
        look_ahead=100,
        backfill_share=0.2,
    )
    with world.running():
        wait_until(lambda: world.held("uploads") + world.held("backfill") == 129, "all wait inside")
        handler.gate.set()
        world.drain()
    assert sum(key.startswith("b") for key in handler.screened[:100]) == pytest.approx(20, abs=2)
    assert len(handler.screened) == 130


def test_an_idle_worker_waits_at_each_lane_in_a_thread_of_its_own() -> None:
    world = World()
    world.consume()
    assert set(world.uploads.waits_s) == set(world.backfill.waits_s) == {1}
    assert set(world.uploads.visible_for_s) == {30}


def test_a_lease_of_a_fraction_is_asked_for_in_whole_seconds() -> None:
    world = World(uploads=[own("a")], lease_s=3.6)
    world.consume()
    assert set(world.uploads.visible_for_s) == {4}


def test_a_test_event_is_acknowledged_and_counted() -> None:
    world = World(uploads=[TEST_EVENT])
    world.consume()
    assert (world.handler.screened, world.uploads.deleted) == ([], [TEST_EVENT])
    assert world.count("videosieve_messages_total", lane="uploads", kind="test") == 1


@pytest.mark.parametrize("body", ["hello", "{}", json.dumps({"Records": []}), own("").replace('"e"', "3")])
def test_a_message_that_is_none_is_dead_lettered_with_its_reason(body: str) -> None:
    world = World(uploads=[body, own("a")])
    world.consume()
    ((dead, reason, detail),) = world.dead_letter.dead
    assert (dead, reason) == (body, "unknown_message")
    assert "not a message about a video" in detail
    assert sorted(world.uploads.deleted) == sorted([body, own("a")])
    assert world.handler.screened == ["a"]
    assert world.count(DISPOSITIONS, lane="uploads", action="dead_letter") == 1
    assert world.count("videosieve_messages_total", lane="uploads", kind="unknown") == 1


def test_a_message_that_cannot_be_dead_lettered_now_comes_back_by_itself() -> None:
    world = World(uploads=["hello", own("a")])
    world.uploads.faults["dead_letter"] = [OUTAGE]
    world.consume()
    assert world.uploads.deleted == [own("a")]


def test_a_message_of_several_videos_is_deleted_after_the_last_of_them() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[s3("a", "b")], handler=handler)
    with world.running():
        wait_until(lambda: handler.running == 1, "the first is running")
        assert world.uploads.deleted == []
        handler.gate.set()
        world.drain()
    assert handler.screened == ["a", "b"]
    assert world.uploads.deleted == [s3("a", "b")]


def test_one_video_to_try_again_keeps_the_whole_message_hidden_for_the_smallest_delay() -> None:
    world = World(uploads=[s3("a", "b", "c")], handler=FakeHandler(a=retry(300), b=DONE, c=retry(100)))
    world.consume()
    ((body, hidden_s),) = world.uploads.hidden
    assert body == s3("a", "b", "c")
    assert 100 * JITTER[0] <= hidden_s <= 100 * JITTER[1]
    assert world.uploads.deleted == []
    assert world.count(DISPOSITIONS, lane="uploads", action="retry") == 1


def test_delays_are_spread_so_that_retries_do_not_come_in_a_herd() -> None:
    keys = [f"k{n}" for n in range(50)]
    world = World(uploads=[own(key) for key in keys], handler=FakeHandler(**dict.fromkeys(keys, retry(100))))
    world.consume()
    delays = [hidden_s for _, hidden_s in world.uploads.hidden]
    assert len(delays) == 50
    assert len(set(delays)) > 40
    assert max(delays) - min(delays) > 10


def test_a_set_up_fault_gives_the_message_back_at_once_and_stops() -> None:
    world = World(uploads=[own("a")], handler=FakeHandler(a=FATAL))
    with world.running():
        wait_until(lambda: world.consumer.set_up_fault is not None, "the consumer gives up")
    assert world.consumer.set_up_fault is FATAL
    assert world.uploads.hidden == [(own("a"), 0)]
    assert world.uploads.deleted == []
    assert len(world.flights) == 0
    assert world.count(DISPOSITIONS, lane="uploads", action="stop") == 1


def test_what_is_in_flight_is_finished_when_the_set_up_is_at_fault() -> None:
    good_runs = threading.Event()

    class Together(FakeHandler):
        def handle(self, event: VideoEvent, flight: Flight) -> Disposition:
            if event.ref.key == "bad":
                assert good_runs.wait(5)
            else:
                good_runs.set()
                wait_until(lambda: world.consumer.set_up_fault is not None, "the consumer gives up")
            return super().handle(event, flight)

    world = World(uploads=[own("bad"), own("good"), own("later")], handler=Together(bad=FATAL))
    with world.running():
        wait_until(lambda: len(world.flights) == 0 and world.consumer.set_up_fault is not None, "the consumer gives up")
    assert world.uploads.deleted == [own("good")]
    assert world.uploads.waiting == [own("later")]


def test_a_fault_while_giving_back_does_not_hide_the_set_up_fault() -> None:
    world = World(uploads=[own("a")], handler=FakeHandler(a=FATAL))
    world.uploads.faults["hide"] = [OUTAGE]
    world.consume()
    assert world.consumer.set_up_fault is FATAL


def test_a_queue_that_is_not_there_stops_the_worker() -> None:
    world = World(uploads=[own("a")])
    missing = FatalError(Reason.BAD_SETTING, "there is no queue")
    world.backfill.faults["receive"] = [missing]
    with world.running():
        wait_until(lambda: world.consumer.set_up_fault is missing, "the consumer gives up")
    assert world.uploads.hidden == [(own("a"), 0)]  # what came in the same round is given back, not begun


@pytest.mark.parametrize("error", [OUTAGE, TransientError(Reason.THROTTLED, "slow down", retry_after_s=0.3)])
def test_an_outage_while_receiving_is_waited_out_and_does_not_spin(
    monkeypatch: pytest.MonkeyPatch, error: TransientError
) -> None:
    monkeypatch.setattr(consumer_module, "POLL_RETRY_S", 0.3)
    world = World(uploads=[own("a")])
    world.uploads.faults["receive"] = [error] * 1000
    with world.running():
        time.sleep(0.5)
        assert 1 <= len(world.uploads.asked) <= 3
        world.uploads.faults.clear()
        wait_until(lambda: world.uploads.deleted == [own("a")], "the outage ends")
    assert world.consumer.set_up_fault is None


def test_an_outage_of_one_lane_does_not_starve_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "POLL_RETRY_S", 0.05)
    world = World(backfill=[own("b")])
    world.uploads.faults["receive"] = [OUTAGE] * 1000
    with world.running():
        wait_until(lambda: world.backfill.deleted == [own("b")], "backfill goes on")


def test_stopping_during_an_outage_does_not_wait_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "POLL_RETRY_S", 60)
    world = World()
    world.uploads.faults["receive"] = [OUTAGE]
    started_s = time.monotonic()
    with world.running():
        wait_until(lambda: bool(world.uploads.asked), "the first poll")
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("verb", ["delete", "hide"])
def test_a_message_that_cannot_be_settled_now_is_left_and_the_worker_goes_on(verb: str) -> None:
    world = World(uploads=[own("a"), own("b")], handler=FakeHandler(a=retry(9)) if verb == "hide" else None)
    world.uploads.faults[verb] = [OUTAGE]
    world.consume()
    assert sorted(world.handler.screened) == ["a", "b"]
    assert len(world.uploads.deleted) <= 1
    assert world.consumer.set_up_fault is None


def test_an_unforeseen_error_is_logged_leaves_its_message_and_frees_its_thread() -> None:
    world = World(
        uploads=[own("a"), own("b"), own("c")], handler=FakeHandler(a=ZeroDivisionError("bug")), concurrency=1
    )
    with capture_logs() as entries:
        world.consume()
    assert world.uploads.deleted == [own("b"), own("c")]
    assert [entry["event"] for entry in entries if entry["log_level"] == "error"] == ["message_crashed"]


def test_stopping_finishes_what_is_in_flight_and_receives_nothing_more() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own("a"), own("b")], handler=handler, concurrency=1)
    with world.running():
        wait_until(lambda: handler.running == 1, "one is running")
        world.consumer.stop()
    assert world.uploads.deleted == [own("a")]
    assert world.uploads.waiting == [own("b")]


class Latch:
    """A gate that is opened and closed by hand."""

    def __init__(self) -> None:
        self.open = True
        self.seen: list[VideosieveError] = []

    def is_open(self) -> bool:
        return self.open

    def saw(self, error: VideosieveError) -> None:
        self.seen.append(error)


def test_while_a_breaker_is_open_nothing_is_received_or_begun() -> None:
    gate = Latch()
    gate.open = False
    world = World(uploads=[own("a")], gate=gate)
    with world.running():
        time.sleep(0.1)
        assert (world.uploads.asked, world.handler.screened) == ([], [])
        gate.open = True
        wait_until(lambda: world.uploads.deleted == [own("a")], "work goes on by itself")


def test_what_failed_while_a_breaker_is_open_comes_back_soon_however_often_it_came() -> None:
    gate = Latch()

    class Closing(FakeHandler):
        def handle(self, event: VideoEvent, flight: Flight) -> Disposition:
            gate.open = False
            return super().handle(event, flight)

    world = World(uploads=[own("a")], handler=Closing(a=retry(900)), gate=gate)
    with world.running():
        wait_until(lambda: bool(world.uploads.hidden), "it is put off")
    assert world.uploads.hidden[0][1] <= OUTAGE_DELAY_S * JITTER[1]


def test_a_queue_that_fails_is_told_to_the_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "POLL_RETRY_S", 0.01)
    gate = Latch()
    world = World(gate=gate)
    world.uploads.faults["receive"] = [OUTAGE] * 3
    with world.running():
        wait_until(lambda: len(gate.seen) == 3, "three failures are told")


def test_a_tenant_with_thousands_of_messages_does_not_hold_up_the_others(unswept: None) -> None:
    handler = FakeHandler()
    handler.gate.clear()
    big = [own(f"big/{n}") for n in range(300)]
    small = [own(f"small-{n}/clip") for n in range(10)]
    world = World(uploads=big + small, handler=handler, concurrency=2, look_ahead=1000)
    with world.running():
        wait_until(lambda: world.held("uploads") == 308, "the worker has seen all", timeout_s=20)
        handler.gate.set()
        world.drain()
    # the large tenant may have its turn once among them, when both of its videos end at once
    assert sum(key.startswith("small") for key in handler.screened[2:13]) == 10
    assert len(handler.screened) == 310


def test_what_will_not_be_begun_soon_is_hidden_for_a_moment_so_that_another_worker_gets_it(unswept: None) -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own(f"{n}") for n in range(204)], handler=handler, concurrency=2, look_ahead=1000)
    with world.running():
        wait_until(lambda: world.held("uploads") == 202, "the worker has seen all", timeout_s=20)
        receives = list(zip(world.uploads.visible_for_s, world.uploads.asked, strict=True))
        handler.gate.set()
        world.drain()
    assert sum(asked for hold_s, asked in receives if hold_s == HOLD_S) == 4  # two that run, two that are next
    moments_s = [hold_s for hold_s, _ in receives if hold_s < HOLD_S]
    assert (min(moments_s), max(moments_s)) == (GLANCE_S, GLANCE_S + 2)  # a second more for every hundred


def test_what_waits_inside_is_given_back_at_once_when_the_worker_stops() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own(f"{n}") for n in range(25)], handler=handler, concurrency=1, look_ahead=100)
    with world.running():
        wait_until(lambda: world.held("uploads") == 24, "all are held")
        world.consumer.stop()
        wait_until(lambda: len(world.uploads.hidden) == 24, "the rest is given back while one still runs")
        assert handler.running == 1
    assert {hidden_s for _, hidden_s in world.uploads.hidden} == {0}
    assert len(world.uploads.deleted) == 1


def test_thousands_that_wait_are_given_back_by_several_requests_at_a_time(unswept: None) -> None:
    meet = threading.Barrier(8, timeout=5)

    class Slow(FakeQueue):
        def hide_many(self, messages: Sequence[Message], seconds: float) -> list[Message]:
            if seconds == 0:
                meet.wait()
            return super().hide_many(messages, seconds)

    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own(f"{n}") for n in range(401)], handler=handler, concurrency=1, look_ahead=1000)
    world.uploads.__class__ = Slow
    with world.running():
        wait_until(lambda: world.held("uploads") == 400, "all are held", timeout_s=20)
        world.consumer.stop()
        wait_until(lambda: [s for _, s in world.uploads.hidden].count(0) == 400, "all are given back")
    given_back = {body for body, hidden_s in world.uploads.hidden if hidden_s == 0}
    assert len(given_back) == 400


def test_what_is_held_is_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "LOOK_AHEAD_BYTES", 1000)
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own("x" * 500 + str(n)) for n in range(50)], handler=handler, concurrency=1, look_ahead=40)
    with world.running():
        wait_until(lambda: handler.running == 1, "one is running")
        time.sleep(0.2)
        assert len(world.uploads.waiting) >= 40 - 10
        handler.gate.set()
        world.drain()
    assert len(world.uploads.deleted) == 50


def test_a_message_that_came_often_is_hidden_for_longer_by_receiving_it() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own("a"), own("b"), own("c")], handler=handler, concurrency=1, look_ahead=10)
    world.uploads.receive_count = 40
    with world.running():
        wait_until(lambda: len(world.uploads.hidden) >= 3, "they are hidden")
        longer = GROWTH ** (40 - GROWS_AFTER)
        assert {hidden_s for _, hidden_s in world.uploads.hidden} == {
            min(MOST_S, held_s * longer) for held_s in (HOLD_S, GLANCE_S)
        }


def test_deletes_go_ten_to_a_request() -> None:
    world = World(uploads=[own(f"{n}") for n in range(40)], concurrency=8, look_ahead=40)
    world.consume()
    assert len(world.uploads.deleted) == 40
    assert len(world.uploads.deletes) <= 20


def test_a_message_that_came_very_often_and_has_to_wait_again_is_sent_anew() -> None:
    world = World(uploads=[own("a")], handler=FakeHandler(a=retry(100)))
    world.uploads.receive_count = RENEW_AT
    world.consume()
    ((body, delay_s),) = world.uploads.renewed
    assert body == own("a")
    assert 80 <= delay_s <= 120
