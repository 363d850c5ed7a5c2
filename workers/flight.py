"""Messages in flight, and the heartbeat that keeps them ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.errors import LeaseLostError, Reason, VideosieveError
from pipeline.runs import Claimed, Lane
from pipeline.stores.ledger import Ledger
from pipeline.stores.queue import Message, Queue
from workers.logs import get_logger
from workers.metrics import Metrics

BEATS_PER_LEASE = 3
"""Two beats may fail before a lease is lost."""


@dataclass(slots=True, eq=False)
class Flight:
    """One message being worked on; `claim` is the run that it is about, while there is one.

    Once `is_landing`, its visibility belongs to whoever settles it and the heartbeat leaves it alone.
    """

    message: Message
    queue: Queue
    lane: Lane
    claim: Claimed | None = None
    is_landing: bool = False

    @contextmanager
    def holding(self, claim: Claimed) -> Iterator[None]:
        """Have the heartbeat renew `claim` for the length of the `with` block."""
        self.claim = claim
        try:
            yield
        finally:
            self.claim = None


class Flights:
    """All messages in flight in this process, kept alive by one thread."""

    def __init__(self, ledger: Ledger, metrics: Metrics, *, lease_s: float) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._lease_s = lease_s
        self._flights: set[Flight] = set()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        with self._changed:
            return len(self._flights)

    def add(self, flight: Flight) -> None:
        with self._changed:
            self._flights.add(flight)
            self._metrics.in_flight.set(len(self._flights))

    def remove(self, flight: Flight) -> None:
        with self._changed:
            self._flights.discard(flight)
            self._metrics.in_flight.set(len(self._flights))
            self._changed.notify_all()

    def wait_below(self, limit: int, timeout_s: float) -> bool:
        """Wait until fewer than `limit` messages are in flight; False when `timeout_s` passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._flights) < limit, timeout_s)

    def snapshot(self) -> list[Flight]:
        with self._changed:
            return list(self._flights)

    def give_back(self) -> None:
        """Return everything in flight, run and message, for another worker to take at once; no attempt is counted."""
        for flight in self.snapshot():
            claim, flight.is_landing = flight.claim, True
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
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._lease_s / BEATS_PER_LEASE):
            for flight in self.snapshot():
                self._renew(flight)

    def _renew(self, flight: Flight) -> None:
        claim = flight.claim
        try:
            if claim is not None:
                self._ledger.renew(claim.run_id, claim.fence, self._lease_s)
            if not flight.is_landing:
                flight.queue.hide(flight.message, self._lease_s)
            self._metrics.heartbeats.inc()
        except LeaseLostError:
            if flight.claim is claim:  # not just committed
                get_logger().warning("lease_lost", run_id=str(claim.run_id) if claim else None)
        except VideosieveError as error:  # whatever is wrong, the other flights' leases still count on us
            get_logger().warning("heartbeat_failed", reason=error.reason.value, detail=error.detail)
