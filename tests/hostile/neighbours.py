"""Do healthy videos notice the others? Videos that crash, hang and hunger for memory among them, and none.

    python -m tests.hostile.neighbours [--healthy 160] [--crash 20] [--hang 10] [--hunger 10] [--rounds 3]

The misbehaviour comes from `tests.hostile.saboteur`; the clip is of 20 s of 720p. Each faulty video is tried once. A
round is one run of all videos, in random order, and one of the healthy alone, each through a pool of its own; the two
take turns, 20 videos at a time, so that what else the machine does falls on both. The interval is of the ratio of sums,
95 %, from the pairs of turns drawn again with replacement (bootstrap, percentiles).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

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
_TURN_VIDEOS = 20
_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Turn:
    """`cpu_s`: of each healthy video, parent and child; `outcomes`: how many ended how."""

    wall_s: float
    cpu_s: tuple[float, ...]
    outcomes: Counter[str]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same healthy videos, among the faulty ones and alone."""

    together: Turn
    alone: Turn


class Runner:
    """A pool of two slots that is kept busy by two threads."""

    def __init__(self, clip: Path) -> None:
        self._clip = clip
        self._pool = DecoderPool(SLOTS, LIMITS, nursery=NURSERY)
        self._threads = ThreadPoolExecutor(SLOTS)
        self.turn([clip] * SLOTS)  # the pool's start is not what is asked about

    def turn(self, paths: Sequence[Path]) -> Turn:
        start_s = time.monotonic()
        results = list(self._threads.map(self._one, paths))
        wall_s = time.monotonic() - start_s
        kinds = ("healthy" if path == self._clip else path.stem for path in paths)
        outcomes = Counter(f"{kind} {outcome}" for kind, (outcome, _) in zip(kinds, results, strict=True))
        spent_s = tuple(cpu_s for path, (_, cpu_s) in zip(paths, results, strict=True) if path == self._clip)
        return Turn(wall_s, spent_s, outcomes)

    def _one(self, path: Path) -> tuple[str, float]:
        with LocalSource(path) as source:
            try:
                return "decided", self._pool.extract(source, KeyframeSettings()).cost.cpu_s
            except VideosieveError as error:
                return error.reason.value, 0.0

    def close(self) -> None:
        self._threads.shutdown()
        self._pool.close()


def written(folder: Path, faulty: Mapping[str, int]) -> list[Path]:
    """So many videos that give each order."""
    for word in faulty:
        (folder / f"{word}.mp4").write_bytes(order(word))
    return [folder / f"{word}.mp4" for word, count in faulty.items() for _ in range(count)]


def one_round(clip: Path, orders: Sequence[Path], healthy: int, seed: int) -> list[Pair]:
    """All videos in an order of that seed, turn by turn beside as many of the healthy alone."""
    paths = [clip] * healthy + list(orders)
    random.Random(seed).shuffle(paths)  # noqa: S311 - an order, no secret
    together, alone = Runner(clip), Runner(clip)
    pairs = []
    for at in range(0, len(paths), _TURN_VIDEOS):
        mixed = paths[at : at + _TURN_VIDEOS]
        same = [path for path in mixed if path == clip]
        if at // _TURN_VIDEOS % 2:
            pairs.append(Pair(together.turn(mixed), alone.turn(same)))
        else:
            first = alone.turn(same)
            pairs.append(Pair(together.turn(mixed), first))
    together.close()
    alone.close()
    return pairs


def frames(seconds: int, width_px: int, height_px: int) -> Iterator[BgrImage]:
    """A new scene every five seconds."""
    for seed in range(seconds // 5):
        yield from pictures(125, width_px, height_px, seed=seed)


def ratio_interval(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """CPU of the healthy together over alone: the ratio of sums, and its 95 % interval."""
    sums_s = np.array([(sum(pair.together.cpu_s), sum(pair.alone.cpu_s)) for pair in pairs])
    drawn = np.random.default_rng(7).integers(0, len(pairs), (_DRAWS, len(pairs)))
    totals_s = sums_s[drawn].sum(axis=1)
    low, high = np.percentile(totals_s[:, 0] / totals_s[:, 1], (2.5, 97.5))
    return float(sums_s[:, 0].sum() / sums_s[:, 1].sum()), float(low), float(high)


def compared(healthy: int, faulty: Mapping[str, int], rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clip = encode(folder / "clip.mp4", frames(20, 1280, 720), options={"g": "50"})
        orders = written(folder, faulty)
        pairs = [pair for seed in range(rounds) for pair in one_round(clip, orders, healthy, seed)]
    at_their_limit = faulty.get("hang", 0) + faulty.get("hunger", 0)  # memory takes time to be used up, this at most
    allowed_s = 1.15 * (at_their_limit * LIMITS.wall_s + sum(faulty.values()) * _RESPAWN_S) / SLOTS
    ratio, low, high = ratio_interval(pairs)
    together = [pair.together for pair in pairs]
    alone = [pair.alone for pair in pairs]
    return {
        "rounds": rounds,
        "outcomes": dict(sorted(sum((turn.outcomes for turn in together), Counter()).items())),
        "cpu_ms_alone": round(fmean(each for turn in alone for each in turn.cpu_s) * 1000, 2),
        "cpu_ms_together": round(fmean(each for turn in together for each in turn.cpu_s) * 1000, 2),
        "cpu_ratio": round(ratio, 4),
        "cpu_ratio_interval": [round(low, 4), round(high, 4)],
        "wall_s_alone": round(sum(turn.wall_s for turn in alone) / rounds, 2),
        "added_wall_s": round((sum(t.wall_s for t in together) - sum(t.wall_s for t in alone)) / rounds, 2),
        "allowed_wall_s": round(allowed_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--healthy", type=int, default=160)
    for word, count in (("crash", 20), ("hang", 10), ("hunger", 10)):
        parser.add_argument(f"--{word}", type=int, default=count)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    faulty = {word: getattr(wanted, word) for word in ("crash", "hang", "hunger")}
    print(json.dumps(compared(wanted.healthy, faulty, wanted.rounds), indent=2))  # noqa: T201 - a report


if __name__ == "__main__":
    main()
