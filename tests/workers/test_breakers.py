from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from pipeline.errors import PermanentError, Reason, TransientError, VideosieveError
from tests.waiting import wait_for
from workers.breakers import SUSPICIOUS_AFTER, Breakers, Dependency, Suspicion
from workers.metrics import Metrics

DOWN = TransientError(Reason.STORE_UNAVAILABLE, "connection refused")


class Service:
    """A dependency that can be down, with a probe that counts."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.probes = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        self.probes += 1
        self.meanwhile()
        if self.error is not None:
            raise self.error


class World:
    def __init__(self) -> None:
        self.services = {dependency: Service() for dependency in Dependency}
        self.registry = CollectorRegistry()
        self.breakers = Breakers(dict(self.services), Metrics(self.registry), wait_first_s=0.05)

    def gauge(self, dependency: Dependency) -> float | None:
        return self.registry.get_sample_value("videosieve_breaker_open", {"dependency": dependency.value})


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with capture_logs():
        yield made
        made.breakers.close()


@pytest.mark.parametrize(
    ("reason", "dependency"),
    [
        (Reason.STORE_UNAVAILABLE, Dependency.STORE),
        (Reason.FORBIDDEN, Dependency.STORE),
        (Reason.DATABASE_UNAVAILABLE, Dependency.DATABASE),
        (Reason.QUEUE_UNAVAILABLE, Dependency.QUEUE),
        (Reason.MODEL_UNAVAILABLE, Dependency.MODELS),
        (Reason.MACHINE_FULL, Dependency.DECODING),
    ],
)
def test_a_dependency_that_fails_for_everybody_stops_the_work_until_its_probe_passes(
    world: World, reason: Reason, dependency: Dependency
) -> None:
    world.services[dependency].error = TransientError(reason, "down")
    for _ in range(3):
        world.breakers.saw(TransientError(reason, "down"))
    assert not world.breakers.is_open()
    assert set(world.breakers.troubles()) == {dependency.value}
    assert world.gauge(dependency) == 1
    wait_for(lambda: world.services[dependency].probes >= 2)
    assert not world.breakers.is_open()
    world.services[dependency].error = None
    wait_for(world.breakers.is_open)
    assert world.breakers.troubles() == {}
    wait_for(lambda: world.gauge(dependency) == 0)
    assert all(service.probes == 0 for other, service in world.services.items() if other is not dependency)


def test_single_failures_between_videos_that_work_stop_nothing(world: World) -> None:
    for _ in range(20):
        world.breakers.saw(DOWN)
        world.breakers.saw(DOWN)
        world.breakers.worked()
    assert world.breakers.is_open()


@pytest.mark.parametrize("reason", [Reason.DECODE_TIMEOUT, Reason.LEASE_LOST, Reason.CORRUPT, Reason.GIVEN_BACK])
def test_what_is_a_videos_or_another_workers_business_stops_nothing(world: World, reason: Reason) -> None:
    for _ in range(50):
        world.breakers.saw(VideosieveError(reason, "so it goes"))
    assert world.breakers.is_open()


def test_a_full_disk_shows_in_the_probe_as_an_error_of_the_system(world: World) -> None:
    world.services[Dependency.DECODING].error = OSError(28, "No space left on device")
    for _ in range(3):
        world.breakers.saw(TransientError(Reason.MACHINE_FULL, "no space left"))
    wait_for(lambda: world.services[Dependency.DECODING].probes >= 1)
    assert "No space left" in world.breakers.troubles()["decoding"]
    world.services[Dependency.DECODING].error = None
    wait_for(world.breakers.is_open)


def test_two_dependencies_that_fail_have_to_work_both(world: World) -> None:
    for reason, dependency in ((Reason.STORE_UNAVAILABLE, "store"), (Reason.DATABASE_UNAVAILABLE, "database")):
        world.services[Dependency(dependency)].error = TransientError(reason, "down")
        for _ in range(3):
            world.breakers.saw(TransientError(reason, "down"))
    world.services[Dependency.STORE].error = None
    wait_for(lambda: set(world.breakers.troubles()) == {"database"})
    assert not world.breakers.is_open()
    world.services[Dependency.DATABASE].error = None
    wait_for(world.breakers.is_open)


def reject(breakers: Breakers, count: int) -> None:
    for _ in range(count):
        breakers.worked(rejected=True)


def test_when_nearly_every_video_is_rejected_a_known_clip_has_to_be_decoded_first(world: World) -> None:
    broken = PermanentError(Reason.NOT_A_VIDEO, "so the broken decoder says")
    world.services[Dependency.DECODING].error = broken
    reject(world.breakers, SUSPICIOUS_AFTER)
    assert set(world.breakers.troubles()) == {"decoding"}
    wait_for(lambda: world.services[Dependency.DECODING].probes >= 2)
    assert not world.breakers.is_open()
    world.services[Dependency.DECODING].error = None
    wait_for(world.breakers.is_open)


def test_a_flood_of_rubbish_costs_one_look_and_is_then_believed(world: World) -> None:
    reject(world.breakers, SUSPICIOUS_AFTER)
    wait_for(world.breakers.is_open)
    reject(world.breakers, 50 * SUSPICIOUS_AFTER)
    assert world.breakers.is_open()
    assert world.services[Dependency.DECODING].probes == 1


@pytest.mark.parametrize(("rejected_of_ten", "is_suspicious"), [(1, False), (5, False), (7, False), (8, True)])
def test_honest_shares_of_rejections_raise_no_suspicion(rejected_of_ten: int, is_suspicious: bool) -> None:
    suspicion = Suspicion()
    seen = [suspicion.saw(rejected=number % 10 < rejected_of_ten) for number in range(100)]
    assert any(seen) is is_suspicious


def test_closing_ends_the_thread_also_while_a_breaker_is_open() -> None:
    with capture_logs():
        world = World()
        world.services[Dependency.STORE].error = DOWN
        for _ in range(3):
            world.breakers.saw(DOWN)
        world.breakers.close()
    assert "probe" not in {thread.name for thread in threading.enumerate()}


def test_work_that_was_begun_before_an_outage_closes_nothing_while_the_probe_looks(world: World) -> None:
    store = world.services[Dependency.STORE]
    store.meanwhile = world.breakers.worked
    for _ in range(3):
        world.breakers.saw(DOWN)
    wait_for(world.breakers.is_open)
    wait_for(lambda: world.gauge(Dependency.STORE) == 0)
