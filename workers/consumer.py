"""Takes messages off the lanes and sees each one to its end: parse → screen its videos → delete, hide or dead-letter.

Backpressure is explicit: no more messages are received than there are free threads.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Protocol

import structlog

from pipeline.disposition import Action, Disposition
from pipeline.errors import FatalError, PermanentError, TransientError
from pipeline.events import VideoEvent, parse_message
from pipeline.runs import Lane
from pipeline.stores.queue import Queue, Queues
from workers.flight import Flight, Flights
from workers.logs import get_logger
from workers.metrics import Metrics

POLL_RETRY_S = 2.0
JITTER = (0.8, 1.2)


class Handler(Protocol):
    """Screens one video; `workers.screening.Screener`."""

    def screen(self, event: VideoEvent, flight: Flight) -> Disposition:
        """What becomes of the video's message. Raises FatalError only, when our set-up is at fault."""
        ...


class Consumer:
    """One threaded consumer over the upload and the backfill lane."""

    def __init__(
        self,
        queues: Queues,
        handler: Handler,
        flights: Flights,
        metrics: Metrics,
        *,
        concurrency: int,
        lease_s: float,
        poll_wait_s: int,
    ) -> None:
        self._lanes: Sequence[tuple[Lane, Queue]] = ((Lane.UPLOADS, queues.uploads), (Lane.BACKFILL, queues.backfill))
        self._queues = queues
        self._handler = handler
        self._flights = flights
        self._metrics = metrics
        self._concurrency = concurrency
        self._lease_s = lease_s
        self._poll_wait_s = poll_wait_s
        self._stop = threading.Event()
        self._receives_no_more = threading.Event()
        self.set_up_fault: FatalError | None = None

    def stop(self) -> None:
        """Receive nothing more; `run` returns once what is in flight is done. Safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Consume until `stop`, or until `set_up_fault` says why it cannot go on; what is in flight is finished."""
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="screen") as threads:
            try:
                while not self._stop.is_set():
                    if self._flights.wait_below(self._concurrency, timeout_s=0.5):
                        for flight in self._receive():
                            self._take_on(flight, threads)
            finally:
                self._receives_no_more.set()

    def wait_until_receiving_ended(self, timeout_s: float) -> None:
        """After `stop`: wait for the receive under way, which may still bring messages. They are given back."""
        self._receives_no_more.wait(timeout_s)

    def _take_on(self, flight: Flight, threads: ThreadPoolExecutor) -> None:
        if self._stop.is_set():
            self._return(flight)
            return
        self._flights.add(flight)
        threads.submit(self._fly, flight).add_done_callback(_report)

    def _receive(self) -> list[Flight]:
        """Messages for the free threads: uploads first; backfill gets what uploads leave free."""
        free = self._concurrency - len(self._flights)
        flights: list[Flight] = []
        for wait_s in (0, self._poll_wait_s):
            for lane, queue in self._lanes:
                if free > len(flights) and not self._stop.is_set():
                    wait_here_s = wait_s if lane is Lane.UPLOADS else 0
                    flights += self._receive_from(lane, queue, free - len(flights), wait_here_s)
            if flights:
                break
        return flights

    def _receive_from(self, lane: Lane, queue: Queue, most: int, wait_s: int) -> list[Flight]:
        try:
            messages = queue.receive(max_messages=min(10, most), wait_s=wait_s, visibility_s=round(self._lease_s))
        except TransientError as error:
            get_logger().warning("receive_failed", lane=lane.value, reason=error.reason.value, detail=error.detail)
            self._stop.wait(error.retry_after_s or POLL_RETRY_S)
            return []
        except FatalError as error:
            self._give_up(error)
            return []
        for message in messages:
            self._metrics.time_in_queue.labels(lane=lane.value).observe(
                max(0.0, (datetime.now(UTC) - message.sent_at).total_seconds())
            )
        return [Flight(message, queue, lane) for message in messages]

    def _fly(self, flight: Flight) -> None:
        with structlog.contextvars.bound_contextvars(lane=flight.lane.value, message_id=flight.message.message_id):
            try:
                dispositions = self._handle(flight)
                flight.is_landing = True
                self._settle(flight, dispositions)
            except TransientError as error:  # the message comes back when its visibility ends
                get_logger().warning("message_not_settled", reason=error.reason.value, detail=error.detail)
            except FatalError as error:
                self._count(flight, Action.STOP)
                self._give_up(error)  # before giving the message back, so that it does not come here again
                self._return(flight)
            finally:
                self._flights.remove(flight)

    def _handle(self, flight: Flight) -> list[Disposition]:
        """What became of each video of the message; a message that is none goes to the dead-letter queue."""
        try:
            parsed = parse_message(flight.message.body)
        except PermanentError as error:
            self._metrics.messages.labels(lane=flight.lane.value, kind="unknown").inc()
            get_logger().warning("message_dead_lettered", reason=error.reason.value, detail=error.detail)
            self._count(flight, Action.DEAD_LETTER)
            flight.queue.dead_letter(flight.message, self._queues.dead_letter, reason=error.reason, detail=error.detail)
            return []
        self._metrics.messages.labels(lane=flight.lane.value, kind=parsed.kind).inc()
        if not parsed.events:
            get_logger().info("test_event")
            return [Disposition(Action.ACKNOWLEDGE)]
        return [self._handler.screen(event, flight) for event in parsed.events]

    def _settle(self, flight: Flight, dispositions: Sequence[Disposition]) -> None:
        """The message goes when all its videos are seen to; redelivery finds the finished ones settled."""
        if not dispositions:
            return
        actions = {found.action for found in dispositions}
        if Action.RETRY in actions:
            self._count(flight, Action.RETRY)
            delay_s = min(found.delay_s for found in dispositions if found.action is Action.RETRY)
            flight.queue.hide(flight.message, delay_s * random.uniform(*JITTER))  # noqa: S311 - jitter, not a secret
        else:
            self._count(flight, Action.ACKNOWLEDGE)
            flight.queue.delete(flight.message)

    def _give_up(self, error: FatalError) -> None:
        """Our set-up is at fault: take nothing more, and let the process say so and exit."""
        get_logger().error("set_up_fault", reason=error.reason.value, detail=error.detail)
        self.set_up_fault = error
        self.stop()

    def _return(self, flight: Flight) -> None:
        """Let the message, whose run was given back already, come to another worker at once."""
        flight.is_landing = True  # else the next heartbeat would hide it again
        try:
            flight.queue.hide(flight.message, 0)
        except (TransientError, FatalError) as error:
            get_logger().warning("give_back_failed", reason=error.reason.value, detail=error.detail)

    def _count(self, flight: Flight, action: Action) -> None:
        self._metrics.dispositions.labels(lane=flight.lane.value, action=action.value).inc()


def _report(done: Future[None]) -> None:
    """An unforeseen error outside the handler: nobody asks the future for it, so it must not end there unseen."""
    if error := done.exception():
        get_logger().error("message_crashed", exc_info=error)
