"""Mutants of small healthy videos through the sandbox: every one must end in keyframes or a typed reason.

    make fuzz        or        python -m tests.hostile.fuzz [--mutants 5000] [--seed 1] [--out fuzz-output]

A mutant is named by the run's seed and its own number, so one alone can be made again. Those that crash their child
or run into a limit, and all errors without a reason, are offenders: they are kept in the folder `--out`.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.errors import PermanentError, VideosieveError
from pipeline.media import KeyframeSettings
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests.hostile.making import encode, pictures

SLOTS = 2
LIMITS = replace(Limits(), wall_s=20.0, cpu_s=8.0)
SEEDS: dict[str, tuple[str, dict[str, str]]] = {
    "h264.mp4": ("libx264", {}),
    "faststart.mp4": ("libx264", {"movflags": "faststart"}),
    "fragmented.mp4": ("libx264", {"movflags": "frag_keyframe+empty_moov"}),
    "hevc.mp4": ("libx265", {}),
    "av1.mp4": ("libsvtav1", {}),
    "mpeg4.mp4": ("mpeg4", {}),
    "h263.3gp": ("h263", {}),
    "prores.mov": ("prores_ks", {}),
    "mjpeg.mov": ("mjpeg", {}),
    "h264.mkv": ("libx264", {}),
    "vp8.webm": ("libvpx", {}),
    "vp9.webm": ("libvpx-vp9", {}),
    "mpeg4.avi": ("mpeg4", {}),
    "msmpeg4.avi": ("msmpeg4", {}),
    "flv1.flv": ("flv", {}),
    "h264.flv": ("libx264", {}),
    "h264.ts": ("libx264", {}),
    "mpeg2.ts": ("mpeg2video", {}),
    "mpeg1.mpg": ("mpeg1video", {}),
    "mpeg2.mpg": ("mpeg2video", {}),
}
"""Name -> encoder and container options."""

_PIXELS = {"mjpeg": "yuvj420p", "prores_ks": "yuv422p10le"}
_INTERESTING = (0, 1, 7, 8, 127, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_NAME = re.compile(rb"[a-zA-Z]{4}")


@functools.cache
def seeds() -> dict[str, bytes]:
    """The healthy videos: 176x144, 20 frames, a key in every eight where the codec has inter pictures."""
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (codec, container_options) in SEEDS.items():
            path = Path(folder) / name
            encode(path, pictures(20, 176, 144), codec, pix_fmt=_PIXELS.get(codec, "yuv420p"),
                   options={"g": "8"}, container_options=container_options)  # fmt: skip
            made[name] = path.read_bytes()
    return made


Mutation = Callable[[bytearray, np.random.Generator], bytearray]


def flip(data: bytearray, generator: np.random.Generator) -> bytearray:
    for at in generator.integers(0, len(data), generator.integers(1, 40)):
        data[at] ^= 1 << int(generator.integers(0, 8))
    return data


def truncate(data: bytearray, generator: np.random.Generator) -> bytearray:
    return data[: int(generator.integers(0, len(data)))]


def splice(data: bytearray, generator: np.random.Generator) -> bytearray:
    """A piece of this or another video in the place of another piece."""
    others = list(seeds().values())
    other = others[int(generator.integers(0, len(others)))] if generator.random() < 0.5 else bytes(data)
    length = int(generator.integers(1, 4096))
    start, at = int(generator.integers(0, len(other))), int(generator.integers(0, len(data)))
    cut = at + (length if generator.random() < 0.5 else 0)
    return data[:at] + other[start : start + length] + data[cut:]


def drop(data: bytearray, generator: np.random.Generator) -> bytearray:
    at = int(generator.integers(0, len(data)))
    return data[:at] + data[at + int(generator.integers(1, 2048)) :]


def header(data: bytearray, generator: np.random.Generator) -> bytearray:
    """Random bytes near the beginning, or near the index at the end."""
    start = 0 if generator.random() < 0.6 else max(0, len(data) - 2048)
    for at in generator.integers(start, min(start + 1024, len(data)), generator.integers(1, 8)):
        data[at] = int(generator.integers(0, 256))
    return data


def size_field(data: bytearray, generator: np.random.Generator) -> bytearray:
    """Numbers beside four-letter names, or anywhere, become ones that readers get wrong."""
    names = [match.start() for match in _NAME.finditer(data)]
    for _ in range(int(generator.integers(1, 4))):
        if names and generator.random() < 0.8:
            at = names[int(generator.integers(0, len(names)))] + (-4, 4, 8, 12, 16)[int(generator.integers(0, 5))]
        else:
            at = int(generator.integers(0, len(data)))
        at = min(max(0, at), len(data) - 4)
        value = _INTERESTING[int(generator.integers(0, len(_INTERESTING)))]
        data[at : at + 4] = value.to_bytes(4, "big" if generator.random() < 0.7 else "little")
    return data


MUTATIONS: Sequence[Mutation] = (flip, truncate, splice, drop, header, size_field)


def mutant(seed: int, number: int) -> tuple[str, bytes]:
    """What it was made from and by, and its bytes; the same for the same seed and number."""
    generator = np.random.default_rng((seed, number))
    name = list(SEEDS)[number % len(SEEDS)]
    data, ways = bytearray(seeds()[name]), []
    for _ in range(int(generator.choice((1, 1, 1, 2, 3)))):
        way = MUTATIONS[int(generator.integers(0, len(MUTATIONS)))]
        if data:
            data = way(data, generator)
            ways.append(way.__name__)
    return f"{name} by {'+'.join(ways)}", bytes(data)


@dataclass(frozen=True, slots=True)
class Result:
    number: int
    made: str
    outcome: str
    detail: str
    wall_s: float
    is_offender: bool


def fuzz(mutants: int, seed: int, out: Path | None) -> list[Result]:
    """Every mutant's result, in order; the offenders are written to `out`."""
    seeds()  # before the threads: encoders are not made for being started twice at once
    with tempfile.TemporaryDirectory() as name, DecoderPool(SLOTS, LIMITS) as pool:
        folder = Path(name)

        def one(number: int) -> Result:
            made, data = mutant(seed, number)
            path = folder / f"{threading.get_ident()}{Path(made.split()[0]).suffix}"
            path.write_bytes(data)
            result = tried(pool, path, number, made)
            if result.is_offender and out is not None:
                out.mkdir(parents=True, exist_ok=True)
                (out / f"{seed}-{number}-{result.outcome}{path.suffix}").write_bytes(data)
            return result

        with ThreadPoolExecutor(SLOTS) as threads:
            return list(threads.map(one, range(mutants)))


def tried(pool: DecoderPool, path: Path, number: int, made: str) -> Result:
    """How the mutant at `path` ends."""
    start_s = time.monotonic()
    outcome, detail, is_offender = "keyframes", "", False
    try:
        with LocalSource(path) as source:
            pool.extract(source, KeyframeSettings())
    except PermanentError as error:
        outcome, detail = error.reason.value, error.detail
    except VideosieveError as error:
        outcome, detail, is_offender = error.reason.value, error.detail, True
    except Exception as error:  # noqa: BLE001 - the handler: what it is, is what is looked for
        outcome, detail, is_offender = "untyped", f"{type(error).__name__}: {error}", True
    return Result(number, made, outcome, detail, time.monotonic() - start_s, is_offender)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz-output"))
    wanted = parser.parse_args()
    results = fuzz(wanted.mutants, wanted.seed, wanted.out)
    _report(results, wanted.seed)
    return int(any(result.outcome == "untyped" for result in results))


def _report(results: Sequence[Result], seed: int) -> None:
    lines = [f"{len(results)} mutants of {len(SEEDS)} videos, seed {seed}"]
    lines += [f"{count:7d}  {outcome}" for outcome, count in Counter(r.outcome for r in results).most_common()]
    lines.append("slowest:")
    slowest = sorted(results, key=lambda result: -result.wall_s)[:5]
    lines += [f"{r.wall_s:7.2f} s  {r.number} {r.made}: {r.outcome} {r.detail}" for r in slowest]
    offenders = [result for result in results if result.is_offender]
    lines.append(f"offenders: {len(offenders)}")
    lines += [f"  {r.number} {r.made}: {r.outcome} {r.detail}" for r in offenders]
    print("\n".join(lines))  # noqa: T201 - a report


if __name__ == "__main__":
    sys.exit(main())
