"""Do healthy videos notice the others? One run with videos that crash, hang and hunger for memory, and one without.

    python -m tests.hostile.neighbours [--healthy 160] [--crash 20] [--hang 10] [--hunger 10]

The misbehaviour comes from `tests.hostile.saboteur`; the clip is of 20 s of 720p. Each faulty video is tried once.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from pipeline.errors import VideosieveError
from pipeline.media import BgrImage, KeyframeSettings
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests.hostile.making import encode, pictures
from tests.hostile.saboteur import NURSERY, order

SLOTS = 2
LIMITS = replace(Limits(), wall_s=2.0, memory_bytes=1024**3)
_RESPAWN_S = 0.1


@dataclass(frozen=True, slots=True)
class Ran:
    """`cpu_s`: of each healthy video, parent and child; `outcomes`: how many ended how."""

    wall_s: float
    cpu_s: tuple[float, ...]
    outcomes: Mapping[str, int]


def run(folder: Path, healthy: int, faulty: Mapping[str, int], clip: Path) -> Ran:
    """All videos in a random order of a fixed seed, through a pool of two slots."""
    paths = [clip] * healthy
    for word, count in faulty.items():
        path = folder / f"{word}.mp4"
        path.write_bytes(order(word))
        paths += [path] * count
    random.Random(7).shuffle(paths)  # noqa: S311 - an order, no secret
    cpu_s: list[float] = []
    outcomes: Counter[str] = Counter()
    with DecoderPool(SLOTS, LIMITS, nursery=NURSERY) as pool, ThreadPoolExecutor(SLOTS) as threads:

        def one(path: Path) -> tuple[Path, str, float]:
            with LocalSource(path) as source:
                try:
                    return path, "decided", pool.extract(source, KeyframeSettings()).cost.cpu_s
                except VideosieveError as error:
                    return path, error.reason.value, 0.0

        one(clip)  # the pool's start is not what is asked about
        start_s = time.monotonic()
        for path, outcome, spent_s in threads.map(one, paths):
            outcomes["healthy " + outcome if path == clip else f"{path.stem} {outcome}"] += 1
            if path == clip:
                cpu_s.append(spent_s)
        wall_s = time.monotonic() - start_s
    return Ran(wall_s, tuple(cpu_s), dict(sorted(outcomes.items())))


def frames(seconds: int, width_px: int, height_px: int) -> Iterator[BgrImage]:
    """A new scene every five seconds."""
    for seed in range(seconds // 5):
        yield from pictures(125, width_px, height_px, seed=seed)


def compared(healthy: int, faulty: Mapping[str, int]) -> dict[str, object]:
    """The healthy alone, all together, the healthy alone again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clip = encode(folder / "clip.mp4", frames(20, 1280, 720), options={"g": "50"})
        alone = run(folder, healthy, {}, clip)
        together = run(folder, healthy, faulty, clip)
        again = run(folder, healthy, {}, clip)
    alone_s = fmean(alone.cpu_s + again.cpu_s)
    at_their_limit = faulty.get("hang", 0) + faulty.get("hunger", 0)  # memory takes time to be used up, this at most
    allowed_s = 1.15 * (at_their_limit * LIMITS.wall_s + sum(faulty.values()) * _RESPAWN_S) / SLOTS
    return {
        "outcomes": together.outcomes,
        "cpu_ms_alone": round(alone_s * 1000, 2),
        "cpu_ms_together": round(fmean(together.cpu_s) * 1000, 2),
        "cpu_ratio": round(fmean(together.cpu_s) / alone_s, 4),
        "cpu_ratio_of_medians": round(median(together.cpu_s) / median(alone.cpu_s + again.cpu_s), 4),
        "wall_s_alone": round((alone.wall_s + again.wall_s) / 2, 2),
        "wall_s_together": round(together.wall_s, 2),
        "added_wall_s": round(together.wall_s - (alone.wall_s + again.wall_s) / 2, 2),
        "allowed_wall_s": round(allowed_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--healthy", type=int, default=160)
    for word, count in (("crash", 20), ("hang", 10), ("hunger", 10)):
        parser.add_argument(f"--{word}", type=int, default=count)
    wanted = parser.parse_args()
    faulty = {word: getattr(wanted, word) for word in ("crash", "hang", "hunger")}
    print(json.dumps(compared(wanted.healthy, faulty), indent=2))  # noqa: T201 - a report


if __name__ == "__main__":
    main()
