"""What can be seen of a running consumer from beside it: whether it gets on, and the gauges that need asking."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import VideosieveError
from workers.consumer import Consumer, LaneSpec
from workers.flight import Flights
from workers.metrics import Metrics

TURN_S = 150.0
"""A lane's thread comes round at least this often, even while every request to the queue runs into its timeout."""
SAMPLE_S = 1.0
SAMPLES_PER_DEPTH = 15


@dataclass(frozen=True, slots=True)
class Progress:
    """Whether a consumer gets on: that its process lives says nothing."""

    consumer: Consumer
    flights: Flights
    longest_video_s: float

    def troubles(self) -> dict[str, str]:
        """What does not move, by name, with how long; empty where all does."""
        found: dict[str, str] = {}
        if (idle_s := self.consumer.idle_s()) > TURN_S:
            found["receiving"] = f"a lane's thread has not come round for {idle_s:.0f} s"
        if (silent_s := self.flights.silent_s()) > TURN_S:
            found["heartbeat"] = f"the heartbeat has not come round for {silent_s:.0f} s"
        if (oldest_s := self.flights.oldest_s()) > self.longest_video_s:
            found["videos"] = f"a video has been worked on for {oldest_s:.0f} s"
        return found


class Sampler:
    """Keeps the gauges fresh in a thread of its own: what is held every second, the lanes' depth every 15."""

    def __init__(self, consumer: Consumer, lanes: Sequence[LaneSpec], metrics: Metrics) -> None:
        self._consumer = consumer
        self._lanes = lanes
        self._metrics = metrics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sample", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while True:
            self._consumer.sample()
            if turn % SAMPLES_PER_DEPTH == 0:
                self._sample_depths()
            turn += 1
            if self._stop.wait(SAMPLE_S):
                return

    def _sample_depths(self) -> None:
        for spec in self._lanes:
            try:
                depth = spec.queue.depth()
            except VideosieveError:
                continue  # the consumer's own requests say so
            for state, count in (
                ("visible", depth["visible"]),
                ("in_flight", depth["in_flight"]),
                ("delayed", depth["delayed"]),
            ):
                self._metrics.backlog.labels(lane=spec.lane.value, state=state).set(count)
