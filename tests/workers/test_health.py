from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from pipeline.errors import UserError
from tests.workers.fakes import FakeHandler, World, own, wait_until
from workers.health import serving
from workers.metrics import Metrics
from workers.observing import TURN_S, Progress, Sampler


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


def test_health_and_readiness_are_told_apart_and_say_why() -> None:
    health: dict[str, str] = {}
    readiness: dict[str, str] = {}
    registry = CollectorRegistry()
    Metrics(registry)
    with serving("127.0.0.1", 0, registry, health=lambda: health, readiness=lambda: readiness) as port:
        assert get(port, "/healthz") == (200, '{"status": "ok", "troubles": {}}\n')
        assert get(port, "/readyz")[0] == 200
        readiness["store"] = "store_unavailable: connection refused"
        assert get(port, "/healthz")[0] == 200
        status, body = get(port, "/readyz")
        assert (status, json.loads(body)["troubles"]) == (503, readiness)
        health["heartbeat"] = "silent for 99 s"
        assert get(port, "/healthz")[0] == 503
        assert set(json.loads(get(port, "/readyz")[1])["troubles"]) == {"store", "heartbeat"}
        status, text = get(port, "/metrics")
        assert status == 200
        assert "videosieve_in_flight_videos" in text


def test_a_port_that_is_taken_is_the_users_mistake() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(UserError, match="VIDEOSIEVE_WORKER__METRICS_PORT"),
            serving("127.0.0.1", taken.getsockname()[1], CollectorRegistry(), health=dict, readiness=dict),
        ):
            pass


def test_a_consumer_that_gets_on_has_no_troubles_and_a_hanging_video_is_one() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own("a")], handler=handler)
    with world.running():
        patient, impatient = (Progress(world.consumer, world.flights, longest) for longest in (60, 0.01))
        wait_until(lambda: handler.running == 1, "one is running")
        time.sleep(0.02)
        assert patient.troubles() == {}
        assert set(impatient.troubles()) == {"videos"}


def test_threads_that_do_not_come_round_are_troubles(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.flights.close()
    later_s = time.monotonic() + TURN_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert set(Progress(world.consumer, world.flights, 60).troubles()) == {"receiving", "heartbeat"}


def test_the_gauges_tell_what_is_held_and_how_old_it_is() -> None:
    handler = FakeHandler()
    handler.gate.clear()
    world = World(uploads=[own(f"{n}") for n in range(6)], handler=handler, concurrency=2, look_ahead=10)
    with world.running():
        wait_until(lambda: handler.running == 2 and not world.uploads.waiting, "all are held")
        world.consumer.sample()
        assert world.count("videosieve_waiting_messages", lane="uploads") == 4
        assert world.count("videosieve_oldest_message_seconds", lane="uploads") >= 1
        assert world.count("videosieve_waiting_bytes") > 100
        handler.gate.set()
        world.drain()
        world.consumer.sample()
        assert world.count("videosieve_waiting_messages", lane="uploads") == 0
        assert world.count("videosieve_oldest_message_seconds", lane="uploads") == 0
    assert world.count("videosieve_busy_seconds_total") > 0
    assert world.count("videosieve_threads") == 2


def test_a_lane_whose_depth_cannot_be_asked_for_stops_no_sampling() -> None:
    world = World()
    with world.running():
        sampler = Sampler(world.consumer, [], world.metrics)
        sampler.close()
    assert not sampler._thread.is_alive()
