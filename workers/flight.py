"""Messages that this process holds, and the heartbeat that keeps those being worked on ours."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from pipeline.errors import PermanentError, Reason, VideosieveError
from pipeline.events import ParsedMessage
from pipeline.runs import Claimed, Lane
from pipeline.stores.ledger import Ledger
from pipeline.stores.queue import Message, Queue
from workers.logs import get_logger
from workers.metrics import Metrics

BEATS_PER_LEASE = 3
"""Two beats may fail before a lease is lost."""
_BEAT_WAIT_S = 0.3
LATE_S = 15.0
"""A message that others may receive this soon is renewed with the next beat, two in this time; most videos are done
earlier. What cannot wait for it is renewed at once,"""
LINGER = 0.01
"""or so much of that time later, together with what is begun meanwhile."""


@dataclass(slots=True, eq=False)
class Flight:
    """One message in our hands: `parsed`, or the `fault` for which it is none. `claim` is the run that it is about,
    while there is one.

    `hidden_until_s` is when others may receive it, counted from our receiving it on `time.monotonic`. Once
    `is_landing`, its visibility belongs to whoever settles it and the heartbeat leaves it alone; once `is_lost`, its
    run is somebody else's.
    """

    message: Message
    queue: Queue
    lane: Lane
    tenant: str = "-"
    hidden_until_s: float = 0.0
    begun_s: float = 0.0
    parsed: ParsedMessage | None = None
    fault: PermanentError | None = None
    claim: Claimed | None = None
    claimed_s: float = 0.0
    is_landing: bool = False
    is_lost: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.message.body)

    @property
    def sent_at(self) -> datetime:
        return self.message.sent_at

    @contextmanager
    def holding(self, claim: Claimed) -> Iterator[None]:
        """Have the heartbeat renew `claim` for the length of the `with` block."""
        self.claimed_s, self.is_lost = time.monotonic(), False
        self.claim = claim
        try:
            yield
        finally:
            self.claim = None


class Flights:
    """All messages being worked on in this process, kept alive by one thread: their runs' leases by one statement,
    their visibility by one request for ten messages."""

    def __init__(self, ledger: Ledger, metrics: Metrics, *, lease_s: float) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._lease_s = lease_s
        self._late_s = min(LATE_S, lease_s / BEATS_PER_LEASE)
        self._claim_due_s = lease_s / BEATS_PER_LEASE - self._late_s / 2
        self._flights: dict[Flight, None] = {}  # in the order of their beginning
        self._changed = threading.Condition()
        self._beating = threading.Lock()
        self._wake = threading.Event()
        self._is_closed = False
        self._beaten_s = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        with self._changed:
            return len(self._flights)

    def add(self, flight: Flight) -> None:
        flight.begun_s = time.monotonic()
        with self._changed:
            self._flights[flight] = None
            self._metrics.in_flight.set(len(self._flights))
        if flight.hidden_until_s - flight.begun_s < self._late_s / 2 * 1.2:  # before the next beat
            self._wake.set()

    def remove(self, flight: Flight) -> None:
        with self._changed:
            self._flights.pop(flight, None)
            self._metrics.in_flight.set(len(self._flights))
            self._changed.notify_all()

    def by_tenant(self) -> Counter[str]:
        """How many of each tenant's messages are being worked on."""
        with self._changed:
            return Counter(flight.tenant for flight in self._flights)

    def snapshot(self) -> list[Flight]:
        with self._changed:
            return list(self._flights)

    def oldest_s(self) -> float:
        """How long the longest has been in flight; 0 where none is."""
        with self._changed:
            oldest = next(iter(self._flights), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.begun_s

    def silent_s(self) -> float:
        """How long ago the heartbeat last came round."""
        return time.monotonic() - self._beaten_s

    def land(self, flight: Flight) -> None:
        """From now on the flight's visibility is the caller's: no beat that is under way touches it afterwards."""
        with self._beating:
            flight.is_landing = True

    def give_back(self) -> None:
        """Return everything in flight, run and message, for another worker to take at once; no attempt is counted."""
        flights = self.snapshot()
        for flight in flights:
            flight.is_landing = True
        if self._beating.acquire(timeout=_BEAT_WAIT_S):  # a beat under way would hide again what is given back
            self._beating.release()
        for flight in flights:
            claim = flight.claim
            try:
                if claim is not None:
                    self._ledger.release(
                        claim.run_id,
                        claim.fence,
                        reason=Reason.GIVEN_BACK,
                        detail="the worker was stopped",
                        fault=False,
                        hidden_s=0,
                    )
                flight.queue.hide(flight.message, 0)
            except VideosieveError as error:
                get_logger().warning("give_back_failed", reason=error.reason.value, detail=error.detail)

    def close(self) -> None:
        """Stop the heartbeat. What is still in flight runs out by itself."""
        self._is_closed = True
        self._wake.set()
        self._thread.join()

    def _beat(self) -> None:
        """Looks often enough that what becomes due is renewed in time, and a beat that failed is repeated."""
        while not self._is_closed:
            if self._wake.wait(self._late_s / 2):
                time.sleep(self._late_s * LINGER)
            self._wake.clear()
            self._beaten_s = time.monotonic()
            if not self._is_closed and (flights := self.snapshot()):
                spent_s = time.thread_time()
                self._renew_due(flights, self._beaten_s)
                self._metrics.stage_cpu.labels(stage="queue").inc(time.thread_time() - spent_s)

    def _renew_due(self, flights: Sequence[Flight], now_s: float) -> None:
        claimed = [
            flight
            for flight in flights
            if flight.claim is not None and not flight.is_lost and now_s - flight.claimed_s >= self._claim_due_s
        ]
        self._renew_claims(claimed, now_s)
        with self._beating:
            due = [
                flight
                for flight in flights
                if not (flight.is_landing or flight.is_lost) and flight.hidden_until_s - now_s < self._late_s * 1.5
            ]
            for queue in {flight.queue for flight in due}:
                self._hide([flight for flight in due if flight.queue is queue], queue)

    def _renew_claims(self, flights: Sequence[Flight], now_s: float) -> None:
        """Renew the runs' leases, and mark the flights whose run is not ours any more."""
        held = {(claim.run_id, claim.fence): flight for flight in flights if (claim := flight.claim) is not None}
        if not held:
            return
        try:
            kept = self._ledger.renew_many(list(held), self._lease_s)
        except VideosieveError as error:  # whatever is wrong, the messages still count on us
            get_logger().warning("heartbeat_failed", reason=error.reason.value, detail=error.detail)
            return
        for run, flight in held.items():
            if run in kept:
                flight.claimed_s = now_s
                self._metrics.heartbeats.inc()
            elif flight.claim is not None and (flight.claim.run_id, flight.claim.fence) == run:  # not just committed
                get_logger().warning("lease_lost", run_id=str(run[0]))
                flight.is_lost = True

    def _hide(self, flights: Sequence[Flight], queue: Queue) -> None:
        try:
            hidden = hide_all(flights, queue, self._lease_s)
        except VideosieveError as error:
            get_logger().warning("heartbeat_failed", reason=error.reason.value, detail=error.detail)
            return
        if hidden < len(flights):
            get_logger().warning("messages_not_hidden", messages=len(flights) - hidden)


def hide_all(flights: Sequence[Flight], queue: Queue, hidden_s: float) -> int:
    """Hide messages of one queue from others, and take note until when; how many SQS did that for.

    What it refused comes to others when it would have come anyway. Raises what `Queue.hide_many` raises.
    """
    now_s = time.monotonic()
    by_message = {id(flight.message): flight for flight in flights}
    hidden = queue.hide_many([flight.message for flight in flights], hidden_s)
    for message in hidden:
        by_message[id(message)].hidden_until_s = now_s + hidden_s
    return len(hidden)
