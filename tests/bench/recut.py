"""Real footage joined anew with known cuts, dissolves and fades, for fitting: `python -m tests.bench.recut FOLDER OUT`.

Generated footage alone teaches that whatever raises sizes is a blend: real things move in more ways. The shots of the
folder's clips, between the cuts of their truth files, are drawn in an order that the seed decides.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np

from pipeline.media import BgrImage
from pipeline.video.synthesis import fitted
from tests.bench.corpus import ENCODERS, Target, encode_images
from tests.bench.scoring import read_truth
from tests.bench.scripts import FPS

_SIZE_PX = (1280, 720)
_CLIPS, _SHOTS = 4, 24
_SHOT_S, _JOIN_S, _STEP_S = (1.5, 3.0), (0.5, 1.0), 6.0
_KINDS = ("cut", "cut", "dissolve", "fade")
_EDGE_S = 0.2


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a clip, shown for `length_s`; `joins` says how it follows the one before, over `joins_s`."""

    clip: Path
    start_s: float
    length_s: float
    joins: str
    joins_s: float


def pieces(clips: Sequence[Path], seed: int, shots: int = _SHOTS) -> list[_Piece]:
    """What one recut consists of; a clip of real footage gives as many pieces as it has shots long enough."""
    generator = np.random.default_rng(seed)
    parts = []
    for clip in clips:
        truth = read_truth(clip)
        for start_s, end_s in itertools.pairwise((0.0, *truth.cuts_s, truth.duration_s)):
            starts = np.arange(start_s + _EDGE_S, end_s - _SHOT_S[1] - _JOIN_S[1] - _EDGE_S, _STEP_S)
            parts += [(clip, start_s, float(at_s)) for at_s in starts]
    left = [parts[at] for at in generator.permutation(len(parts))]
    found: list[_Piece] = []
    scene: tuple[Path, float] | None = None
    for number in range(shots):
        clip, shot_s, start_s = next(part for part in left if part[:2] != scene)
        left.remove((clip, shot_s, start_s))
        scene = (clip, shot_s)
        joins = str(generator.choice(_KINDS)) if number else "cut"
        joins_s = 0.0 if joins == "cut" else round(float(generator.uniform(*_JOIN_S)) * FPS) / FPS
        length_s = round(float(generator.uniform(*_SHOT_S)) * FPS) / FPS
        found.append(_Piece(clip, start_s, length_s, joins, joins_s))
    return found


def truth_of(parts: Sequence[_Piece], name: str, group: str) -> dict[str, object]:
    """As in the truth files. A join of two pieces takes place where the second begins."""
    starts = np.cumsum([0.0, *(part.length_s for part in parts)]).round(4).tolist()
    joined = list(zip(parts[1:], starts[1:], strict=False))
    return {
        "name": name,
        "group": group,
        "fps": FPS,
        "duration": starts[-1],
        "cuts": [at_s for part, at_s in joined if part.joins == "cut"],
        "gradual": [
            [part.joins, round(at_s - part.joins_s / 2, 3), round(at_s + part.joins_s / 2, 3)]
            for part, at_s in joined
            if part.joins != "cut"
        ],
        "motion": [],
        "motion_scored": [],
    }


def images(parts: Sequence[_Piece]) -> Iterator[BgrImage]:
    """Every frame of a recut."""
    following: list[BgrImage] = []
    for number, part in enumerate(parts):
        half = round(part.joins_s * FPS / 2)
        after = parts[number + 1] if number + 1 < len(parts) else None
        tail = round(after.joins_s * FPS / 2) if after else 0
        shown = _frames(part, round(part.length_s * FPS) + half + tail)
        for position, image in enumerate(itertools.islice(shown, 2 * half)):
            yield _blended(following[position], image, (position + 0.5) / (2 * half), part.joins)
        yield from itertools.islice(shown, round(part.length_s * FPS) - half - tail)
        following = list(shown)


def _blended(old: BgrImage, new: BgrImage, done: float, joins: str) -> BgrImage:
    if joins == "dissolve":
        return np.asarray(cv2.addWeighted(old, 1 - done, new, done, 0.0), np.uint8)
    return np.asarray(cv2.convertScaleAbs(old if done < 0.5 else new, alpha=abs(2 * done - 1)), np.uint8)


def _frames(part: _Piece, count: int) -> Iterator[BgrImage]:
    """`count` frames from where the piece begins, the last repeated where the clip ends."""
    with av.open(str(part.clip), "r") as container:
        stream = container.streams.video[0]
        container.seek(int(part.start_s * av.time_base))
        image: BgrImage | None = None
        for frame in container.decode(stream):
            if frame.time is not None and frame.time >= part.start_s - 1e-3 and count:
                image = fitted(cast("BgrImage", frame.to_ndarray(format="bgr24")), _SIZE_PX)
                count -= 1
                yield image
            if not count:
                return
        if image is not None:
            yield from itertools.repeat(image, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    clips = sorted(options.folder.glob("*web*.mp4"))  # the others show the same
    targets = [Target(group, group, group, _SIZE_PX) for group in ENCODERS]
    for seed in range(_CLIPS):
        parts = pieces(clips, seed)
        truths = {target: truth_of(parts, f"recut{seed}_{target.suffix}", target.group) for target in targets}
        encode_images(options.out, f"recut{seed}", images(parts), truths)


if __name__ == "__main__":
    main()
