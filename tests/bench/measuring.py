"""What one method costs on one clip, and what it finds: processor time of the whole process tree, wall time, bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.jpeg import encode_jpeg
from pipeline.media import KeyframeSettings
from pipeline.video.extract import Extractor
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource, Source
from tests.bench.baselines import Detector

_NANOSECONDS = 1e-9
REPEATS = 3
"""Runs of ours per clip, of which the median counts: it takes tenths of a second, less than the clock's noise."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One method on one clip; `onsets_s` None where the method finds no motion.

    `is_same_run` is False where only quality counts: then the times are of another hour.
    """

    cpu_s: float
    wall_s: float
    cuts_s: tuple[float, ...]
    onsets_s: tuple[float, ...] | None = None
    bytes_read: int = 0
    ranges: int = 0
    frames_decoded: int = 0
    keyframes: tuple[tuple[float, str], ...] = ()
    images: tuple[bytes, ...] = ()
    is_same_run: bool = True


def tree_cpu_s() -> float:
    """User and system time so far of this process and of its living descendants, from the scheduler's own clock."""
    return time.process_time() + sum(map(_process_cpu_s, descendants("self")))


def descendants(pid: str) -> list[str]:
    """Process ids of children and their children: the decoder is a child of a child, as a lean process forks it."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError as error:
        raise SystemExit("processor time of other processes is read from Linux's /proc") from error
    return children + [further for child in children for further in descendants(child)]


def _process_cpu_s(pid: str) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * _NANOSECONDS


def measure_ours(pool: DecoderPool, clip: Path, settings: KeyframeSettings, runs: int = REPEATS) -> Measured:
    """Ours as a worker runs it: in the decoder child, read by ranges, JPEGs included. The median of `runs`."""
    return median_run([once(pool, clip, settings) for _ in range(runs)])


def median_run(runs: list[Measured]) -> Measured:
    return sorted(runs, key=lambda run: run.cpu_s)[len(runs) // 2]


def once(pool: DecoderPool, clip: Path, settings: KeyframeSettings, tries: int = 3) -> Measured:
    with LocalSource(clip) as source:
        return once_from(pool, source, settings, tries)


def once_from(pool: DecoderPool, source: Source, settings: KeyframeSettings, tries: int = 3) -> Measured:
    """One run; tried again where a decoder was replaced meanwhile and took its count with it."""
    cpu_s, wall_s = tree_cpu_s(), time.monotonic()
    found = pool.extract(source, settings)
    images = tuple(encode_jpeg(image) for image in found.images)
    cpu_s, wall_s = tree_cpu_s() - cpu_s, time.monotonic() - wall_s
    if cpu_s < 0.9 * found.cost.cpu_s:
        if tries > 1:
            return once_from(pool, source, settings, tries - 1)
        raise SystemExit(f"{source.name}: {cpu_s:.3f} s were measured, but {found.cost.cpu_s:.3f} s reported")
    return Measured(
        cpu_s=cpu_s,
        wall_s=wall_s,
        cuts_s=found.cuts_s,
        onsets_s=tuple(start_s for start_s, _ in found.motion_s),
        bytes_read=found.cost.bytes_read,
        ranges=found.cost.ranges,
        frames_decoded=found.cost.frames_decoded,
        keyframes=tuple((keyframe.t_s, str(keyframe.reason)) for keyframe in found.keyframes),
        images=images,
    )


def measure_baseline(detector: Detector, clip: Path) -> Measured:
    """A detector that reads and decodes the whole file."""
    cpu_s, wall_s = time.process_time(), time.monotonic()
    cuts_s = tuple(detector(clip))
    return Measured(time.process_time() - cpu_s, time.monotonic() - wall_s, cuts_s, bytes_read=clip.stat().st_size)


class Effort(NamedTuple):
    """Ours within this process at a multiple of the usual decoding budget."""

    factor: float
    cpu_s: float
    cuts_s: tuple[float, ...]
    onsets_s: tuple[float, ...]


def measure_effort(clip: Path, factor: float) -> Effort:
    start_s = time.process_time()
    with LocalSource(clip) as source:
        extractor = Extractor(source, KeyframeSettings(), Limits(), effort=factor)
        found = extractor.findings()
        for _, image in extractor.images(found.choices):
            encode_jpeg(image)
    cpu_s = time.process_time() - start_s
    onsets_s = tuple(moving.start_s for moving in found.motion)
    return Effort(factor, cpu_s, tuple(cut.t_s for cut in found.cuts), onsets_s)
