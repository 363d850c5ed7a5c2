"""Takes messages off the lanes and sees each one to its end: parse → handle its videos → delete, hide or dead-letter.

    lane 1 ─ poller ─▶ ┌──────────────┐  begin: lane by share,   ┌─ thread ─▶ handler ─┐   delete, ten at a time
    lane 2 ─ poller ─▶ │ waiting room │ ──tenant by fewest in──▶ │  …                  │ ─▶ hide (retry, busy)
                       └──────────────┘       flight             └─ thread ─▶ handler ─┘   dead-letter
                        bounded by count, bytes, time             heartbeats by `Flights`

Backpressure is explicit: a lane is asked for no more than the waiting room has places, by count and by bytes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import structlog

from pipeline.disposition import Action, Disposition
from pipeline.errors import FatalError, PermanentError, Reason, TransientError, VideosieveError
from pipeline.events import VideoEvent, parse_message
from pipeline.runs import Lane
from pipeline.stores.queue import BATCH_MESSAGES, Message, Queue
from workers.fairness import WaitingRoom, tenant_of
from workers.flight import Flight, Flights, hide_all
from workers.holding import GROWS_AFTER, HOLD_S, Pace, glance_s, grown_s
from workers.landing import Landing
from workers.logs import get_logger
from workers.metrics import Metrics

POLL_RETRY_S = 2.0
JITTER = (0.8, 1.2)
LOOK_AHEAD_BYTES = 32 * 2**20
RENEW_AT = 500
"""A message that is put off and came this often is sent anew: at 1000 receives SQS would take it for poison."""
OUTAGE_DELAY_S = 10.0
"""What failed while a breaker is open comes back soon after it closes."""
GIVE_BACK_THREADS = 8
"""Requests at once that return what waits when the worker stops."""
DIG_PAUSE_S = 0.02
"""Between receives that only look further ahead: 500 messages a second, and time for the work."""
FEW, YIELD_S = 50, 0.1
"""With every place taken and no more than so many waiting, what comes next is left to others for a moment first."""
_LOOK_S = 1.0
_SWEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One queue to consume. `share` is the least part of all starts that it gets while it has messages; the first
    lane gets what the others leave. `look_ahead` is how many messages are held beyond those being worked on: as many
    as one tenant may have waiting without being in the others' way."""

    lane: Lane
    queue: Queue
    share: float = 0.0
    look_ahead: int = BATCH_MESSAGES


class Handler(Protocol):
    """Does the work on one video: `workers.screening.Screener`."""

    def handle(self, event: VideoEvent, flight: Flight) -> Disposition:
        """What becomes of the video's message. Raises FatalError only, when our set-up is at fault."""
        ...


class Gate(Protocol):
    """Says whether work may be taken on: `workers.breakers.Breakers`."""

    def is_open(self) -> bool:
        """Whether messages may be received and begun now."""
        ...

    def saw(self, error: VideosieveError) -> None:
        """Take note of what befell us with a queue."""
        ...


class AlwaysOpen:
    """A gate without a breaker behind it."""

    def is_open(self) -> bool:
        return True

    def saw(self, error: VideosieveError) -> None:
        pass


class Consumer:
    """One threaded consumer over `lanes`, in the order of their precedence."""

    def __init__(
        self,
        lanes: Sequence[LaneSpec],
        dead_letters: Queue,
        handler: Handler,
        flights: Flights,
        metrics: Metrics,
        *,
        concurrency: int,
        lease_s: float,
        poll_wait_s: int,
        gate: Gate | None = None,
    ) -> None:
        self._lanes = tuple(lanes)
        self._dead_letters = dead_letters
        self._handler = handler
        self._flights = flights
        self._metrics = metrics
        self._concurrency = concurrency
        self._most_per_tenant = concurrency if concurrency < 4 else concurrency - 1
        self._lease_s = lease_s
        self._hold_s = min(HOLD_S, lease_s)
        self._poll_wait_s = poll_wait_s
        self._gate = gate or AlwaysOpen()
        self._room: WaitingRoom[Flight] = WaitingRoom([spec.share for spec in lanes])
        self._landing = Landing(metrics)
        self._changed = threading.Condition()
        self._pace = Pace()
        self._stop = threading.Event()
        self._receives_no_more = threading.Event()
        self._swept_s = 0.0
        self._turned_s = [time.monotonic()] * len(self._lanes)
        self.set_up_fault: FatalError | None = None
        metrics.threads.set(concurrency)

    def stop(self) -> None:
        """Receive and begin nothing more; `run` returns once what is in flight is done. Safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Consume until `stop`, or until `set_up_fault` says why it cannot go on; what is in flight is finished."""
        pollers = [_thread(f"poll-{spec.lane.value}", self._poll, number) for number, spec in enumerate(self._lanes)]
        workers = [_thread(f"fly-{number}", self._work) for number in range(self._concurrency)]
        for thread in (*pollers, *workers):
            thread.start()
        self._stop.wait()
        with self._changed:
            self._changed.notify_all()
        self._give_back_waiting()
        for thread in pollers:
            thread.join()
        self._give_back_waiting()
        self._receives_no_more.set()
        for thread in workers:
            thread.join()
        self._landing.close()

    def wait_until_receiving_ended(self, timeout_s: float) -> None:
        """After `stop`: wait for the receives under way, which may still bring messages. They are given back."""
        self._receives_no_more.wait(timeout_s)

    def idle_s(self) -> float:
        """How long ago the slowest of the lanes' threads last came round."""
        return time.monotonic() - min(self._turned_s)

    def sample(self) -> None:
        """Bring the gauges about what is held up to date."""
        with self._changed:
            held = [*self._room, *self._flights.snapshot()]
            for number, spec in enumerate(self._lanes):
                self._metrics.waiting.labels(lane=spec.lane.value).set(self._room.waiting(number))
            self._metrics.waiting_bytes.set(self._room.size_bytes)
        now = datetime.now(UTC)
        for spec in self._lanes:
            sent = min((flight.message.sent_at for flight in held if flight.lane is spec.lane), default=now)
            self._metrics.oldest_message.labels(lane=spec.lane.value).set(max(0.0, (now - sent).total_seconds()))

    # receiving

    def _poll(self, number: int) -> None:
        """One lane's thread: receives while there is room for it."""
        spec = self._lanes[number]
        while not self._stop.is_set():
            self._turned_s[number] = time.monotonic()
            spent_s = time.thread_time()
            if self._wait_for_room(number, spec):
                most, hold_s = self._wanted(number, spec)
                flights = self._receive_from(spec, most, hold_s)
                self._hold_longer(flights, hold_s)
                self._admit(number, flights)
                if flights and not self._free():
                    self._stop.wait(DIG_PAUSE_S if self._room.waiting(number) > FEW else YIELD_S)
            self._metrics.stage_cpu.labels(stage="queue").inc(time.thread_time() - spent_s)

    def _wait_for_room(self, number: int, spec: LaneSpec) -> bool:
        with self._changed:
            return (
                self._changed.wait_for(lambda: self._stop.is_set() or self._places(number, spec) > 0, _LOOK_S)
                and not self._stop.is_set()
            )

    def _places(self, number: int, spec: LaneSpec) -> int:
        """How many messages the lane may be asked for now: full requests, but where threads would go without."""
        if not self._gate.is_open() or self._room.size_bytes >= LOOK_AHEAD_BYTES:
            return 0
        waiting = self._room.waiting(number)
        before = sum(self._room.waiting(lane) for lane in range(number))
        free = max(0, self._free() - before)
        if self._room.is_due(number) and not free and not waiting:
            free = 1
        places = min(BATCH_MESSAGES, spec.look_ahead + free - waiting)
        is_needed = waiting < free or places >= min(BATCH_MESSAGES, spec.look_ahead // 2)
        return places if is_needed else 0

    def _free(self) -> int:
        return max(0, self._concurrency - len(self._flights))

    def _wanted(self, number: int, spec: LaneSpec) -> tuple[int, int]:
        """How many messages to ask for, and how many seconds to hide them: what is begun soon, or only looked at."""
        with self._changed:
            waiting = self._room.waiting(number)
            soon = self._free() + max(self._concurrency, self._pace.soon(time.monotonic())) - waiting
            places = self._places(number, spec)
        if soon > 0:
            return min(places, soon), max(1, round(self._hold_s))
        return places, max(1, round(min(self._lease_s, glance_s(waiting))))

    def _receive_from(self, spec: LaneSpec, most: int, hold_s: int) -> list[Flight]:
        if most <= 0:
            return []
        begun_s = time.monotonic()
        try:
            messages = spec.queue.receive(max_messages=most, wait_s=self._poll_wait_s, visibility_s=hold_s)
        except TransientError as error:
            get_logger().warning("receive_failed", lane=spec.lane.value, reason=error.reason.value, detail=error.detail)
            self._gate.saw(error)
            self._stop.wait(error.retry_after_s or POLL_RETRY_S)
            return []
        except FatalError as error:
            self._give_up(error)
            return []
        now_s = time.monotonic()
        # Received when the answer came, unless it came later than any answer should: then when it was asked for.
        received_s = now_s if now_s - begun_s <= self._poll_wait_s + 1 else begun_s
        return [self._flight(message, spec, received_s + hold_s) for message in messages]

    def _flight(self, message: Message, spec: LaneSpec, hidden_until_s: float) -> Flight:
        flight = Flight(message, spec.queue, spec.lane, hidden_until_s=hidden_until_s)
        try:
            flight.parsed = parse_message(message.body)
        except PermanentError as error:
            flight.fault = error
        if message.group is not None:
            flight.tenant = message.group
        elif flight.parsed is not None and flight.parsed.events:
            flight.tenant = tenant_of(flight.parsed.events[0].ref.key)
        return flight

    def _admit(self, number: int, flights: Sequence[Flight]) -> None:
        with self._changed:
            for flight in flights:
                self._room.add(number, flight)
            if flights:
                self._changed.notify_all()

    def _hold_longer(self, flights: Sequence[Flight], held_s: float) -> None:
        """Hide what came often for longer than receiving did: by how often the most frequent of them came."""
        often = [flight for flight in flights if flight.message.receive_count > GROWS_AFTER]
        hold_s = grown_s(held_s, max((flight.message.receive_count for flight in often), default=0))
        if hold_s is None:
            return
        try:
            hide_all(often, often[0].queue, hold_s)
        except VideosieveError as error:
            get_logger().warning("hold_failed", reason=error.reason.value, detail=error.detail)

    def _give_back_waiting(self) -> None:
        """Let everything that was received and not begun come to another worker at once: several requests at a time,
        what would stay hidden longest first, as thousands may wait and the grace period is short."""
        with self._changed:
            waiting = self._room.take_all()
        waiting.sort(key=lambda flight: -flight.hidden_until_s)
        with ThreadPoolExecutor(GIVE_BACK_THREADS, "give-back") as pool:
            for queue in {flight.queue for flight in waiting}:
                messages = [flight.message for flight in waiting if flight.queue is queue]
                for number in range(min(GIVE_BACK_THREADS, len(messages))):
                    pool.submit(_give_back, queue, messages[number::GIVE_BACK_THREADS])

    # working

    def _work(self) -> None:
        """One of `concurrency` threads: begins one message after the other."""
        while (flight := self._begin()) is not None:
            self._fly(flight)

    def _begin(self) -> Flight | None:
        """The next message, in flight from now on; None once there are to be no more."""
        with self._changed:
            while not self._stop.is_set():
                self._sweep(time.monotonic())
                flight = self._next() if self._gate.is_open() else None
                if flight is not None:
                    waited_s = (datetime.now(UTC) - flight.message.sent_at).total_seconds()
                    self._metrics.time_in_queue.labels(lane=flight.lane.value).observe(max(0.0, waited_s))
                    self._flights.add(flight)
                    self._pace.began(time.monotonic())
                    self._changed.notify_all()
                    return flight
                self._changed.wait(_LOOK_S)
        return None

    def _sweep(self, now_s: float) -> None:
        """Once a second: drop what others may receive by now or before the next time. It comes again."""
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self._room.drop_expired(now_s + 2 * _SWEEP_S)

    def _next(self) -> Flight | None:
        return self._room.begin(self._flights.by_tenant(), most_per_tenant=self._most_per_tenant)

    def _fly(self, flight: Flight) -> None:
        with structlog.contextvars.bound_contextvars(lane=flight.lane.value, message_id=flight.message.message_id):
            try:
                self._settle(flight, self._handle(flight))
            except TransientError as error:  # the message comes back when its visibility ends
                get_logger().warning("message_not_settled", reason=error.reason.value, detail=error.detail)
                self._gate.saw(error)
            except FatalError as error:
                self._count(flight, Action.STOP)
                self._give_up(error)  # before giving the message back, so that it does not come here again
                self._return(flight)
            except Exception:  # noqa: BLE001 - outside the handler, so nobody foresaw it: the thread must go on
                get_logger().exception("message_crashed")
            finally:
                self._flights.remove(flight)
                self._metrics.busy.inc(time.monotonic() - flight.begun_s)
                with self._changed:
                    self._changed.notify_all()

    def _handle(self, flight: Flight) -> list[Disposition]:
        """What became of each video of the message; a message that is none goes to the dead-letter queue."""
        parsed = flight.parsed
        if parsed is None:
            self._dead_letter(flight)
            return []
        self._metrics.messages.labels(lane=flight.lane.value, kind=parsed.kind).inc()
        if not parsed.events:
            get_logger().info("test_event")
            return [Disposition(Action.ACKNOWLEDGE)]
        return [self._handler.handle(event, flight) for event in parsed.events]

    def _dead_letter(self, flight: Flight) -> None:
        error = flight.fault or PermanentError(Reason.UNKNOWN_MESSAGE, "not a message about a video")
        self._metrics.messages.labels(lane=flight.lane.value, kind="unknown").inc()
        get_logger().warning("message_dead_lettered", reason=error.reason.value, detail=error.detail)
        self._count(flight, Action.DEAD_LETTER)
        flight.queue.dead_letter(flight.message, self._dead_letters, reason=error.reason, detail=error.detail)

    def _settle(self, flight: Flight, dispositions: Sequence[Disposition]) -> None:
        """The message goes when all its videos are seen to; redelivery finds the finished ones settled."""
        if not dispositions:
            return
        actions = {found.action for found in dispositions}
        if Action.RETRY in actions:
            self._count(flight, Action.RETRY)
            delay_s = min(found.delay_s for found in dispositions if found.action is Action.RETRY)
            if not self._gate.is_open():  # nothing is received meanwhile, so waiting longer would spare nobody
                delay_s = min(delay_s, OUTAGE_DELAY_S)
            delay_s *= random.uniform(*JITTER)  # noqa: S311 - jitter, not a secret
            self._flights.land(flight)
            if flight.message.receive_count >= RENEW_AT:
                flight.queue.renew(flight.message, delay_s=delay_s)
            else:
                flight.queue.hide(flight.message, delay_s)
        else:
            self._count(flight, Action.ACKNOWLEDGE)
            flight.is_landing = True
            self._landing.delete(flight.message, flight.queue)

    def _give_up(self, error: FatalError) -> None:
        """Our set-up is at fault: take nothing more, and let the process say so and exit."""
        get_logger().error("set_up_fault", reason=error.reason.value, detail=error.detail)
        self.set_up_fault = error
        self.stop()

    def _return(self, flight: Flight) -> None:
        """Let the message, whose run was given back already, come to another worker at once."""
        self._flights.land(flight)  # else the next heartbeat would hide it again
        try:
            flight.queue.hide(flight.message, 0)
        except (TransientError, FatalError) as error:
            get_logger().warning("give_back_failed", reason=error.reason.value, detail=error.detail)

    def _count(self, flight: Flight, action: Action) -> None:
        self._metrics.dispositions.labels(lane=flight.lane.value, action=action.value).inc()


def _give_back(queue: Queue, messages: Sequence[Message]) -> None:
    try:
        queue.hide_many(messages, 0)
    except VideosieveError as error:
        get_logger().warning("give_back_failed", reason=error.reason.value, detail=error.detail)


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    return threading.Thread(target=target, name=name, args=arguments, daemon=True)
