from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import PermanentError, Reason, SupersededError, TransientError
from pipeline.media import KeyframeSettings
from pipeline.video import wire
from pipeline.video.children import child_environment
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import ByteRange, LocalSource
from tests import clips

SETTINGS = KeyframeSettings()


class Meddling(LocalSource):
    """A source that does something to the world when its bytes are asked for."""

    def __init__(self, path: Path, meddle: object) -> None:
        super().__init__(path)
        self._meddle = meddle

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        self._meddle()  # type: ignore[operator]
        return super().read_ranges(ranges)


NURSERY = "pipeline.video.nursery"


def below(parent: int) -> set[int]:
    """Processes that `parent` started, still running or not yet reaped, and that are a nursery or forked by one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent_of = stat.rsplit(")", 1)[1].split()[:2]
            if int(parent_of) == parent and state != "Z" and NURSERY in cmdline(entry):
                found.add(int(entry.name))
    return found


def children() -> set[int]:
    """The decoder processes of this one's pools."""
    return {child for nursery in below(os.getpid()) for child in below(nursery)}


def signal_all(processes: set[int], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process, number)


def cmdline(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clips.write_cuts(tmp_path_factory.mktemp("clips") / "cuts.mp4")


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(1) as shared:
        yield shared


def assert_usable(pool: DecoderPool, clip: Path) -> None:
    with LocalSource(clip) as source:
        assert len(pool.extract(source, SETTINGS).keyframes) >= 1


def test_a_clip_comes_back_with_cuts_images_and_cost(pool: DecoderPool, clip: Path) -> None:
    with LocalSource(clip) as source:
        found = pool.extract(source, KeyframeSettings(per_minute=30))
    assert found.cuts_s == pytest.approx((2.0, 5.0), abs=0.05)
    assert [keyframe.t_s for keyframe in found.keyframes] == sorted(k.t_s for k in found.keyframes)
    assert len(found.images) == len(found.keyframes) >= 3
    assert all(image.shape == (180, 320, 3) for image in found.images)
    difference = np.abs(found.images[0].astype(int) - clips.scene(100))
    assert difference.mean() < 8
    assert found.coverage == 1.0
    assert found.warnings == ()
    assert found.cost.file_bytes == clip.stat().st_size
    assert 0 < found.cost.cpu_s < 10
    assert found.cost.bytes_read > 0
    assert found.cost.frames_decoded >= len(found.images)


def test_a_child_is_kept_for_the_next_video(pool: DecoderPool, clip: Path) -> None:
    assert_usable(pool, clip)
    before = children()
    assert_usable(pool, clip)
    assert children() == before


def test_a_child_is_replaced_after_its_share_of_videos(clip: Path) -> None:
    before, seen = children(), set[int]()
    with DecoderPool(1, Limits(videos_per_child=2)) as pool:
        for _ in range(4):
            with Meddling(clip, lambda: seen.update(children() - before)) as source:
                pool.extract(source, SETTINGS)
    assert len(seen) == 2


def test_a_child_that_ended_while_idle_is_charged_to_no_video(clip: Path) -> None:
    before = children()
    with DecoderPool(1) as pool:
        assert_usable(pool, clip)
        (idle,) = children() - before
        os.kill(idle, signal.SIGKILL)
        while idle in children():
            time.sleep(0.01)
        assert_usable(pool, clip)


def test_a_killed_child_is_a_crash_and_the_next_video_gets_a_new_one(clip: Path) -> None:
    before = children()
    with DecoderPool(1) as pool:
        murderous = Meddling(clip, lambda: signal_all(children() - before, signal.SIGKILL))
        with murderous as source, pytest.raises(TransientError) as raised:
            pool.extract(source, SETTINGS)
        assert raised.value.reason is Reason.DECODER_CRASHED
        assert_usable(pool, clip)


def test_a_stopped_child_runs_into_the_timeout_and_is_killed(clip: Path) -> None:
    before = children()
    with DecoderPool(1, Limits(wall_s=1.0)) as pool:
        with Meddling(clip, lambda: signal_all(children() - before, signal.SIGSTOP)) as source:
            start_s = time.monotonic()
            with pytest.raises(TransientError) as raised:
                pool.extract(source, SETTINGS)
        assert raised.value.reason is Reason.DECODE_TIMEOUT
        assert time.monotonic() - start_s < 10
        assert children() == before


@pytest.mark.parametrize(
    "error",
    [
        SupersededError("replaced"),
        TransientError(Reason.THROTTLED, "slow down", retry_after_s=3.0),
        PermanentError(Reason.NOT_FOUND, "gone"),
        RuntimeError("a fault of ours"),
    ],
)
def test_an_error_of_the_source_ends_the_call_as_it_is(pool: DecoderPool, clip: Path, error: Exception) -> None:
    def fail() -> None:
        raise error

    with Meddling(clip, fail) as source, pytest.raises(type(error)) as raised:
        pool.extract(source, SETTINGS)
    assert raised.value is error
    assert_usable(pool, clip)


def malformed(folder: Path, kind: str) -> Path:
    path = folder / "video.mp4"
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("no video\n" * 100)
    elif kind == "sound":
        clips.write_audio_only(path)
    elif kind == "zeros":
        path.write_bytes(clips.write_cuts(folder / "a.mp4").read_bytes()[:48] + bytes(5000))
    else:
        clips.truncated(clips.write_cuts(folder / "a.mp4"), path, float(kind))
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", Reason.EMPTY_FILE),
        ("text", Reason.NOT_A_VIDEO),
        ("sound", Reason.NO_VIDEO_STREAM),
        ("0.001", Reason.TRUNCATED),
        ("0.3", Reason.TRUNCATED),
        ("0.9", Reason.TRUNCATED),
        ("0.999", Reason.TRUNCATED),
        ("zeros", Reason.TRUNCATED),
    ],
)
def test_what_cannot_be_a_video_is_rejected_and_the_child_lives_on(
    pool: DecoderPool, clip: Path, tmp_path: Path, kind: str, reason: Reason
) -> None:
    assert_usable(pool, clip)
    before = children()
    with LocalSource(malformed(tmp_path, kind)) as source, pytest.raises(PermanentError) as raised:
        pool.extract(source, SETTINGS)
    assert raised.value.reason is reason
    assert children() == before


def test_a_cut_off_tail_leaves_what_can_be_seen_with_a_warning(pool: DecoderPool, tmp_path: Path) -> None:
    options = {"preset": "veryfast", "g": "15"}
    whole = clips.write_numbered(tmp_path / "a.mp4", 90, options=options, container_options={"movflags": "faststart"})
    with LocalSource(clips.truncated(whole, tmp_path / "b.mp4", 0.6)) as source:
        found = pool.extract(source, SETTINGS)
    assert 0.2 < found.coverage < 0.8
    assert found.warnings[0].startswith("truncated: ")
    assert found.video.duration_s == pytest.approx(3.0)
    assert all(keyframe.t_s < 2.5 for keyframe in found.keyframes)


def test_damaged_samples_cost_coverage_not_the_video(pool: DecoderPool, tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 90, options={"preset": "veryfast", "g": "15"})
    data = bytearray(path.read_bytes())
    start, end = data.index(b"mdat") + 4, data.index(b"moov")
    middle = (start + end) // 2
    data[middle:end] = bytes(end - middle)
    path.write_bytes(data)
    with LocalSource(path) as source:
        found = pool.extract(source, SETTINGS)
    assert found.coverage < 1
    assert any(warning.startswith("damaged: ") for warning in found.warnings)


def test_random_damage_is_always_an_answer_or_a_typed_error(pool: DecoderPool, clip: Path, tmp_path: Path) -> None:
    data, generator = clip.read_bytes(), np.random.default_rng(1)
    for _ in range(25):
        damaged = bytearray(data)
        for place in generator.integers(0, len(data), 40):
            damaged[place] = generator.integers(0, 256)
        (tmp_path / "damaged.mp4").write_bytes(damaged)
        with LocalSource(tmp_path / "damaged.mp4") as source, contextlib.suppress(PermanentError):
            pool.extract(source, SETTINGS)
    assert_usable(pool, clip)


@pytest.mark.skipif(os.geteuid() != 0, reason="a confined child shows itself to root only")
def test_a_child_knows_no_secret(pool: DecoderPool, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    with DecoderPool(1) as fresh:
        assert_usable(fresh, clip)
        newest = max(children())
        environment = Path(f"/proc/{newest}/environ").read_bytes()
        files = [entry.readlink() for entry in Path(f"/proc/{newest}/fd").iterdir()]
    assert b"hush" not in environment
    names = {entry.split(b"=")[0].decode() for entry in environment.split(b"\0") if entry}
    names = {name for name in names if not name.startswith("glibc.")}  # glibc cuts its variable up in place
    assert names == set(child_environment())
    assert len(files) == 5, files  # stdin, stdout, stderr, the socket, the image memory


def test_many_threads_share_a_pool_and_nothing_is_left_behind(clip: Path) -> None:
    before_fds, before_children = {entry.name for entry in Path("/proc/self/fd").iterdir()}, children()
    with DecoderPool(2) as pool, ThreadPoolExecutor(4) as threads:

        def once(_: int) -> int:
            with LocalSource(clip) as source:
                return len(pool.extract(source, SETTINGS).keyframes)

        assert list(threads.map(once, range(6))) == [1] * 6
        assert len(children() - before_children) <= 2
    assert children() == before_children
    assert {entry.name for entry in Path("/proc/self/fd").iterdir()} == before_fds


def test_a_closed_pool_takes_no_video(clip: Path) -> None:
    pool = DecoderPool(1)
    pool.close()
    with LocalSource(clip) as source, pytest.raises(TransientError):
        pool.extract(source, SETTINGS)


def test_children_end_when_their_parent_is_killed(clip: Path) -> None:
    script = f"""
import time
from pipeline.media import KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
pool = DecoderPool(1)
pool.extract(LocalSource({str(clip)!r}), KeyframeSettings())
print(pool._idle[0].pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        assert child.exists()
        parent.kill()
    end_s = time.monotonic() + 10
    while NURSERY in cmdline(child) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert NURSERY not in cmdline(child)


class Impostor:
    """Plays a child that was taken over: says what it is told to, in the place of a real one."""

    def __init__(self, pool: DecoderPool, messages: Sequence[bytes]) -> None:
        child = pool._take()
        mine, theirs = socket.socketpair()
        child.connection.close()
        child.connection = mine
        self._theirs = theirs
        self.thread = threading.Thread(target=self._talk, args=(messages,))
        self.thread.start()
        pool._idle.append(child)

    def _talk(self, messages: Sequence[bytes]) -> None:
        with self._theirs:
            wire.receive(self._theirs, wire.Deadline(None), 0)
            try:
                for message in messages:
                    self._theirs.sendall(message)
                self._theirs.recv(1)
            except OSError:
                pass


def framed(message: object) -> bytes:
    text = json.dumps(message).encode()
    return len(text).to_bytes(4, "big") + bytes(4) + text


FOUND = {
    "kind": "found",
    "duration_s": 1.0,
    "width_px": 8,
    "height_px": 8,
    "rotation_deg": 0,
    "codec": "h264",
    "container": "mp4",
    "frames": 30,
    "time_base": [1, 30],
    "cuts_s": [],
    "motion_s": [],
    "warnings": [],
    "coverage": 1.0,
}
IMAGE = {"kind": "image", "width_px": 8, "height_px": 8, "t_s": 0.0, "pts": 0, "reason": "start", "score": 1.0}


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff" * 64],
        [bytes(8)],
        [(9).to_bytes(4, "big") + bytes(4) + b"not json!"],
        [framed([1, 2])],
        [framed({"kind": "rejected", "reason": "made_up", "detail": "x"})],
        [framed({"kind": "rejected", "reason": "lease_lost", "detail": "x"})],
        [framed({"kind": "done", "cpu_s": 0.1, "frames_decoded": 1})],
        [framed({"kind": "read", "ranges": [[-1, 10]]})],
        [framed({"kind": "read", "ranges": [[0, 1 << 40]]})],
        [framed({"kind": "read", "ranges": [[True, 10]]})],
        [framed({"kind": "read", "ranges": "all"})],
        [framed({"kind": "read", "ranges": [[0, 1]] * 5000})],
        [framed(FOUND | {"width_px": 10**9})],
        [framed(FOUND | {"coverage": 7})],
        [framed(FOUND | {"codec": 3})],
        [framed(FOUND), framed(IMAGE | {"width_px": 10**6, "height_px": 10**6})],
        [framed(FOUND), framed(IMAGE | {"reason": "bribe"})],
        [framed(FOUND), framed(FOUND)],
        [framed({"kind": "crashed", "detail": "ValueError: \x1b[2J"})],
    ],
)
def test_nonsense_from_a_child_is_a_crash(clip: Path, messages: Sequence[bytes]) -> None:
    with DecoderPool(1) as pool, LocalSource(clip) as source:
        impostor = Impostor(pool, messages)
        with pytest.raises(TransientError) as raised:
            pool.extract(source, SETTINGS)
        assert raised.value.reason is Reason.DECODER_CRASHED
        assert raised.value.detail.isprintable()
        impostor.thread.join(5)
        assert not impostor.thread.is_alive()


def test_an_honest_report_in_the_same_words_is_accepted(clip: Path) -> None:
    done = framed({"kind": "done", "cpu_s": 0.1, "frames_decoded": 1})
    with DecoderPool(1) as pool, LocalSource(clip) as source:
        Impostor(pool, [framed(FOUND), framed(IMAGE), done])
        found = pool.extract(source, SETTINGS)
        assert found.images[0].shape == (8, 8, 3)
        assert not found.images[0].any()


def test_a_limit_on_memory_below_what_any_video_needs_is_charged_to_none(clip: Path) -> None:
    """A video that hungers for memory is a crash: `tests/hostile`."""
    with DecoderPool(1, Limits(memory_bytes=64 * 1024**2)) as pool, LocalSource(clip) as source:
        with pytest.raises(TransientError, match="MemoryError") as raised:
            pool.extract(source, SETTINGS)
        assert raised.value.reason is Reason.INTERNAL_ERROR
