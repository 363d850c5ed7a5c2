"""What children may do, and what becomes of those that misbehave."""

from __future__ import annotations

import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import PermanentError, Reason, TransientError
from pipeline.media import KeyframeSettings
from pipeline.video import confine
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests import clips
from tests.hostile import neighbours
from tests.hostile.making import encode
from tests.hostile.saboteur import NURSERY, order

SETTINGS = KeyframeSettings()
LIMITS = Limits(wall_s=2.0, cpu_s=1.0, memory_bytes=700 * 1024**2)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(1, LIMITS, nursery=NURSERY) as shared:
        yield shared


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clips.write_cuts(tmp_path_factory.mktemp("clips") / "cuts.mp4")


def ordered(pool: DecoderPool, tmp_path: Path, word: str) -> None:
    path = tmp_path / "order.mp4"
    path.write_bytes(order(word))
    with LocalSource(path) as source:
        pool.extract(source, SETTINGS)


def assert_usable(pool: DecoderPool, clip: Path) -> None:
    with LocalSource(clip) as source:
        assert pool.extract(source, SETTINGS).keyframes


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"},
    reason="system calls are fenced in on Linux on x86-64 and ARM only",
)
def test_a_taken_over_child_can_do_nothing_but_talk(pool: DecoderPool, tmp_path: Path) -> None:
    with pytest.raises(PermanentError) as raised:
        ordered(pool, tmp_path, "break out")
    assert raised.value.detail == "worked: []"
    assert not Path("/tmp/vs-escaped").exists()


@pytest.mark.skipif(
    sys.platform != "linux" or confine.landlock_abi() < 6 or platform.machine() not in {"x86_64", "aarch64"},
    reason="needs a kernel that offers both",
)
@pytest.mark.parametrize(
    ("nursery", "layer", "still_forbidden"),
    [
        ("tests.hostile.seccomp_alone", confine.SECCOMP, {"read a file", "a TCP socket", "another program", "fork"}),
        ("tests.hostile.landlock_alone", confine.LANDLOCK, {"read a file", "list a folder", "write a file", "TCP"}),
    ],
)
def test_each_fence_holds_without_the_other(
    tmp_path: Path, nursery: str, layer: str, still_forbidden: set[str]
) -> None:
    with DecoderPool(1, LIMITS, nursery=nursery) as pool:
        assert pool.layers() == (confine.RESOURCE_LIMITS, layer)
        with pytest.raises(PermanentError) as raised:
            ordered(pool, tmp_path, "break out")
    assert not [what for what in still_forbidden if f"'{what}'" in raised.value.detail], raised.value.detail


def test_the_pool_says_how_its_children_are_confined(pool: DecoderPool) -> None:
    layers = pool.layers()
    assert confine.RESOURCE_LIMITS in layers
    assert (confine.LANDLOCK in layers) == bool(confine.landlock_abi())
    assert set(layers) <= set(confine.LAYERS)


@pytest.mark.parametrize(
    ("word", "reason", "says"),
    [
        ("crash", Reason.DECODER_CRASHED, "SIGSEGV"),
        ("exit", Reason.DECODER_CRASHED, "closed"),
        ("hunger", Reason.DECODER_CRASHED, "MemoryError"),
        ("hang", Reason.DECODE_TIMEOUT, "longer than 2 s"),
    ],
)
def test_misbehaviour_is_charged_to_its_video_alone(
    pool: DecoderPool, clip: Path, tmp_path: Path, word: str, reason: Reason, says: str
) -> None:
    start_s = time.monotonic()
    with pytest.raises(TransientError) as raised:
        ordered(pool, tmp_path, word)
    assert raised.value.reason is reason
    assert says in raised.value.detail
    assert time.monotonic() - start_s < LIMITS.wall_s + 5
    assert_usable(pool, clip)


def test_processor_time_is_limited_whatever_the_clock_says(tmp_path: Path) -> None:
    with DecoderPool(1, Limits(cpu_s=0.5), nursery=NURSERY) as pool, pytest.raises(TransientError) as raised:
        ordered(pool, tmp_path, "spin")
    assert raised.value.reason is Reason.DECODE_TIMEOUT
    assert "processor time" in raised.value.detail


def test_a_nursery_that_died_is_replaced(clip: Path) -> None:
    with DecoderPool(1, Limits(videos_per_child=1)) as pool:
        assert_usable(pool, clip)
        process = pool._nursery._process
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert_usable(pool, clip)


def test_a_damaged_file_costs_its_child(clip: Path, tmp_path: Path) -> None:
    data = bytearray(clip.read_bytes())
    start = data.index(b"mdat") + 4
    data[start : data.index(b"moov") - 4] = bytes(data.index(b"moov") - 4 - start)
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(data)
    with DecoderPool(1) as pool:
        assert_usable(pool, clip)
        before = pool._idle[0].pid
        with LocalSource(damaged) as source, pytest.raises(PermanentError):
            pool.extract(source, SETTINGS)
        assert not pool._idle
        assert_usable(pool, clip)
        assert pool._idle[0].pid != before


def test_healthy_videos_are_decided_whatever_their_neighbours_do(clip: Path, tmp_path: Path) -> None:
    """The figures for 200 videos: `python -m tests.hostile.neighbours`."""
    faulty = neighbours.written(tmp_path, {"crash": 3, "hang": 2, "hunger": 2})
    outcomes = sum((pair.together.outcomes for pair in neighbours.one_round(clip, faulty, 24, seed=7)), Counter())
    hungry = {outcome: count for outcome, count in outcomes.items() if outcome.startswith("hunger ")}
    assert sum(hungry.values()) == 2  # on a slow machine the clock may end them before the memory does
    assert outcomes - Counter(hungry) == {"crash decoder_crashed": 3, "hang decode_timeout": 2, "healthy decided": 24}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_replacing_a_child_costs_is_not_on_the_next_videos_bill(tmp_path: Path) -> None:
    """Counted in pages of memory that are touched for the first time, for time depends on the machine."""
    clip = encode(tmp_path / "clip.mp4", neighbours.frames(10, 1280, 720), options={"g": "50"})
    with DecoderPool(1) as pool:
        pool.layers()
        counts = []
        for _ in range(3):
            before = touched_pages(pool._idle[0].pid)
            assert_usable(pool, clip)
            counts.append(touched_pages(pool._idle[0].pid) - before)
    assert counts[0] < 2000, counts  # 4,800 without the rehearsal; 2,000 pages are 8 MB
    assert max(counts[1:]) < 900, counts  # 1,700 where the allocator gives memory back


def touched_pages(pid: int) -> int:
    """`minflt` of proc_pid_stat(5)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])
