"""What the sandbox costs: CPU a healthy video with it and without it, taken in turns in one run.

    python -m tests.hostile.cost [--videos 60] [--rounds 3]

Without: the same extraction in this process. With: parent, nursery and children together, in steady state, that is
without the start of the nursery; once with children kept for many videos, once with a new child for each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import av

from pipeline.media import KeyframeSettings
from pipeline.video.extract import Extractor
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from pipeline.video.warmup import warm_up
from tests import clips

SETTINGS = KeyframeSettings()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--videos", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    print(json.dumps(measured(wanted.videos, wanted.rounds), indent=2))  # noqa: T201 - a report


def measured(videos: int, rounds: int) -> dict[str, object]:
    """Milliseconds of CPU a video, the median of the rounds."""
    warm_up()
    kept, fresh = Limits(), replace(Limits(), videos_per_child=1)
    found: dict[str, list[float]] = {"without": [], "kept": [], "fresh": []}
    with tempfile.TemporaryDirectory() as folder:
        path = clips.write_cuts(Path(folder) / "cuts.mp4", (3.0, 4.0, 3.0))
        for _ in range(rounds):
            found["without"].append(_each_ms(lambda: _unprotected(path), videos))
            found["kept"].append(_pooled_ms(path, kept, videos))
            found["fresh"].append(_pooled_ms(path, fresh, videos))
    ms = {name: round(median(values), 2) for name, values in found.items()}
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, PyAV "
        f"{av.__version__}",
        "videos": videos,
        "rounds": rounds,
        "cpu_ms_each": ms,
        "sandbox_adds_ms": {name: round(ms[name] - ms["without"], 2) for name in ("kept", "fresh")},
    }


def _unprotected(path: Path) -> None:
    with LocalSource(path) as source:
        extractor = Extractor(source, SETTINGS, Limits())
        list(extractor.images(extractor.findings().choices))


def _pooled_ms(path: Path, limits: Limits, videos: int) -> float:
    """The difference of a long and of a short run of a pool, so that its start does not count."""

    def run(count: int) -> float:
        with DecoderPool(1, limits) as pool:
            for _ in range(count):
                with LocalSource(path) as source:
                    pool.extract(source, SETTINGS)
        return 0.0

    short = videos // 6
    before = _cpu_s()
    run(short)
    between = _cpu_s()
    run(short + videos)
    return ((_cpu_s() - between) - (between - before)) / videos * 1000


def _each_ms(once: Callable[[], None], count: int) -> float:
    before = _cpu_s()
    for _ in range(count):
        once()
    return (_cpu_s() - before) / count * 1000


def _cpu_s() -> float:
    """Of this process and all those that it started and saw end."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


if __name__ == "__main__":
    main()
