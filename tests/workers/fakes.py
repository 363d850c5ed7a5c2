"""Queues, a ledger and a handler in memory, for tests of the consumer alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from prometheus_client import CollectorRegistry

from pipeline.disposition import Action, Disposition
from pipeline.errors import Reason, VideosieveError
from pipeline.events import VideoEvent
from pipeline.runs import Claimed, Lane
from pipeline.stores.ledger import Ledger
from pipeline.stores.queue import Message, Queue
from workers.consumer import Consumer, Gate, LaneSpec
from workers.flight import Flight, Flights
from workers.metrics import Metrics

DONE = Disposition(Action.ACKNOWLEDGE)


def own(key: str) -> str:
    return json.dumps({"type": "videosieve.video", "bucket": "b", "key": key, "etag": "e"})


def s3(*keys: str) -> str:
    records = [
        {
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "b"}, "object": {"key": key, "eTag": "e"}},
        }
        for key in keys
    ]
    return json.dumps({"Records": records})


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = 5.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s, f"waited in vain: {what}"
        time.sleep(0.002)


class FakeQueue(Queue):
    """Hands out `bodies` once each and keeps what was asked of it. Errors in `faults` are raised first; in batches it
    does not hide what it `refuses`."""

    def __init__(self, name: str, bodies: Sequence[str] = ()) -> None:
        self.name = name
        self.waiting = list(bodies)
        self.asked: list[int] = []
        self.waits_s: list[float] = []
        self.visible_for_s: list[float] = []
        self.hidden: list[tuple[str, float]] = []
        self.deleted: list[str] = []
        self.dead: list[tuple[str, str, str]] = []
        self.renewed: list[tuple[str, float]] = []
        self.deletes: list[int] = []
        self.hides: list[int] = []
        self.receive_count = 1
        self.refuses: set[str] = set()
        self.faults: dict[str, list[BaseException]] = {}
        self._lock = threading.Lock()

    def receive(self, *, max_messages: int = 10, wait_s: int, visibility_s: int) -> list[Message]:
        assert type(visibility_s) is int  # boto3 takes nothing else
        assert 1 <= max_messages <= 10  # nor does SQS
        with self._lock:
            self.asked.append(max_messages)
            self.waits_s.append(wait_s)
            self.visible_for_s.append(visibility_s)
            self._fail("receive")
            taken, self.waiting = self.waiting[:max_messages], self.waiting[max_messages:]
        if not taken:
            time.sleep(min(wait_s, 0.01))
        sent_at = datetime.now(UTC) - timedelta(seconds=1)
        return [Message(uuid4().hex, body, f"receipt of {body}", self.receive_count, sent_at) for body in taken]

    def delete(self, message: Message) -> bool:
        with self._lock:
            self._fail("delete")
            self.deleted.append(message.body)
        return True

    def hide(self, message: Message, seconds: float) -> bool:
        with self._lock:
            self._fail("hide")
            self.hidden.append((message.body, seconds))
        return True

    def delete_many(self, messages: Sequence[Message]) -> list[Message]:
        with self._lock:
            self._fail("delete")
            self.deletes.append(len(messages))
            self.deleted += [message.body for message in messages]
        return list(messages)

    def renew(self, message: Message, *, delay_s: float = 0) -> bool:
        self.renewed.append((message.body, delay_s))
        return True

    def hide_many(self, messages: Sequence[Message], seconds: float) -> list[Message]:
        with self._lock:
            self._fail("hide")
            self.hides.append(len(messages))
            taken = [message for message in messages if message.body not in self.refuses]
            self.hidden += [(message.body, seconds) for message in taken]
        return taken

    def dead_letter(self, message: Message, dead_letters: Queue, *, reason: Reason, detail: str) -> bool:
        self._fail("dead_letter")
        assert isinstance(dead_letters, FakeQueue)
        dead_letters.dead.append((message.body, reason.value, detail))
        return self.delete(message)

    def _fail(self, verb: str) -> None:
        if waiting := self.faults.get(verb):
            raise waiting.pop(0)


class FakeLedger(Ledger):
    """Renews leases, or raises `faults` one by one."""

    def __init__(self, *faults: VideosieveError) -> None:
        self.faults = list(faults)
        self.beats = 0
        self.lost: set[tuple[UUID, int]] = set()
        self.renewed: list[tuple[UUID, int, float]] = []
        self.released: list[tuple[UUID, int, Reason, bool, float]] = []

    def renew_many(self, held: Sequence[tuple[UUID, int]], lease_s: float) -> set[tuple[UUID, int]]:
        self.beats += 1
        self.renewed += [(run_id, fence, lease_s) for run_id, fence in held]
        if self.faults:
            raise self.faults.pop(0)
        return set(held) - self.lost

    def release(self, run_id: UUID, fence: int, *, reason: Reason, detail: str, fault: bool, hidden_s: float) -> None:
        self.released.append((run_id, fence, reason, fault, hidden_s))
        if self.faults:
            raise self.faults.pop(0)


class FakeHandler:
    """Answers by the key of the video: a disposition, or an error to raise; `gate` holds all of them back."""

    def __init__(self, **answers: Disposition | BaseException) -> None:
        self.answers = answers
        self.screened: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.running = 0
        self.most_running = 0
        self._lock = threading.Lock()

    def handle(self, event: VideoEvent, flight: Flight) -> Disposition:
        with self._lock:
            self.screened.append(event.ref.key)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            assert self.gate.wait(10)
            answer = self.answers.get(event.ref.key, DONE)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            with self._lock:
                self.running -= 1


def claim(fence: int = 3) -> Claimed:
    return Claimed(uuid4(), fence, attempts=1, faults=0, trace_id="t")


class World:
    """A consumer over fakes, and the thread it runs in."""

    def __init__(
        self,
        *,
        uploads: Sequence[str] = (),
        backfill: Sequence[str] = (),
        handler: FakeHandler | None = None,
        ledger: FakeLedger | None = None,
        concurrency: int = 2,
        lease_s: float = 60.0,
        look_ahead: int = 0,
        backfill_share: float = 0.0,
        gate: Gate | None = None,
    ) -> None:
        self.uploads = FakeQueue("uploads", uploads)
        self.backfill = FakeQueue("backfill", backfill)
        self.dead_letter = FakeQueue("dead-letter")
        self.handler = handler or FakeHandler()
        self.ledger = ledger or FakeLedger()
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.flights = Flights(self.ledger, self.metrics, lease_s=lease_s)
        self.consumer = Consumer(
            [
                LaneSpec(Lane.UPLOADS, self.uploads, look_ahead=look_ahead),
                LaneSpec(Lane.BACKFILL, self.backfill, share=backfill_share, look_ahead=look_ahead),
            ],
            self.dead_letter,
            self.handler,
            self.flights,
            self.metrics,
            concurrency=concurrency,
            lease_s=lease_s,
            poll_wait_s=1,
            gate=gate,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stops, drains and closes at the end of the `with` block."""
        thread = threading.Thread(target=self.consumer.run)
        thread.start()
        try:
            yield
        finally:
            self.handler.gate.set()
            self.consumer.stop()
            thread.join(10)
            self.flights.close()
            assert not thread.is_alive()

    def consume(self) -> None:
        """Run until both lanes are empty and nothing is in flight, or until the consumer gave up."""
        with self.running():
            self.drain()

    def drain(self) -> None:
        """Wait for that; the second poll from now shows that what was received before is in flight or done."""
        wait_until(lambda: self._gave_up or not (self.uploads.waiting or self.backfill.waiting), "the lanes run empty")
        polls = len(self.uploads.asked)
        wait_until(lambda: self._gave_up or len(self.uploads.asked) > polls + 1, "another poll")
        wait_until(lambda: len(self.flights) == 0, "all messages land")

    @property
    def _gave_up(self) -> bool:
        return self.consumer.set_up_fault is not None

    def held(self, lane: str) -> int:
        """How many of a lane's messages were received and are not begun."""
        self.consumer.sample()
        return int(self.count("videosieve_waiting_messages", lane=lane))

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0
