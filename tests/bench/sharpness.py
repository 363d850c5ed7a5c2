"""Whether any keyframe is black or blurred where its shot has a sharp frame within its first two seconds.

    python -m tests.bench.sharpness [--corpus DIR] [--out DIR] [CLIP.mp4 ...]

Measured against a full decode: every frame of the first two seconds of each shot that a keyframe was taken from, the
shots as the truth file says, gradual transitions left out. Sharpness is the variance of the Laplacian of the luma at
640 pixels' width, which is lower for blurred pictures of the same scene (Pech-Pacheco et al., 2000).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from pipeline.media import BgrImage, KeyframeReason, KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests.bench.corpus import FULL, folder_of
from tests.bench.results import table
from tests.bench.scoring import Truth, read_truth

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
_WIDTH_PX = 640
_WITHIN_S = 2.0
_BLACK_MEAN = 24.0
_BLURRED_SHARE = 0.4
"""Below this share of the sharpness of the shot's sharpest early frame a keyframe counts as blurred: half the deviation
of the Laplacian is 0.25, and a pan or noise alone moves it by less than a half."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One keyframe that stands for its shot: its sharpness over the sharpest early frame's, and how bright both are."""

    clip: str
    t_s: float
    reason: str
    sharp_share: float
    luma: float
    best_luma: float

    @property
    def is_bad(self) -> bool:
        is_black = self.luma < _BLACK_MEAN <= self.best_luma
        return is_black or self.sharp_share < _BLURRED_SHARE


def luma_of(image: BgrImage) -> NDArray[np.uint8]:
    height_px = max(1, round(image.shape[0] * _WIDTH_PX / image.shape[1]))
    small = cv2.resize(image, (_WIDTH_PX, height_px), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY), np.uint8)


def sharpness(luma: NDArray[np.uint8]) -> float:
    return float(cv2.Laplacian(luma, cv2.CV_32F).var())


def shots(truth: Truth) -> list[tuple[float, float]]:
    """Where each scene stands alone: [start, end) in seconds, transitions left out."""
    joins = [(cut, cut) for cut in truth.cuts_s] + [(start_s, end_s) for _, start_s, end_s in truth.gradual]
    edges = [(0.0, 0.0), *sorted(joins), (truth.duration_s, truth.duration_s)]
    return [(after[1], before[0]) for after, before in itertools.pairwise(edges)]


def _early(clip: Path, spans: list[tuple[float, float]]) -> dict[tuple[float, float], list[tuple[float, float]]]:
    """Sharpness and mean luma of every frame in the first two seconds of each span."""
    found: dict[tuple[float, float], list[tuple[float, float]]] = {span: [] for span in spans}
    with av.open(str(clip), "r") as container:
        start_s: float | None = None
        for frame in container.decode(video=0):
            start_s = float(frame.time or 0) if start_s is None else start_s
            t_s = float(frame.time or 0) - start_s
            span = next((s for s in spans if s[0] <= t_s < min(s[1], s[0] + _WITHIN_S)), None)
            if span:
                luma = luma_of(np.asarray(frame.to_ndarray(format="bgr24"), np.uint8))
                found[span].append((sharpness(luma), float(luma.mean())))
    return found


def check(pool: DecoderPool, clip: Path, truth: Truth) -> Iterator[Checked]:
    """Every keyframe taken for a shot (not for a motion within it), against its shot's beginning."""
    with LocalSource(clip) as source:
        extraction = pool.extract(source, KeyframeSettings())
    spans = shots(truth)
    taken = []
    for keyframe, image in zip(extraction.keyframes, extraction.images, strict=True):
        span = next((s for s in spans if s[0] - 0.02 <= keyframe.t_s < s[1]), None)
        if keyframe.reason is not KeyframeReason.MOTION and span:
            taken.append((keyframe, image, span))
    early = _early(clip, sorted({span for *_, span in taken}))
    for keyframe, image, span in taken:
        if not early[span]:
            continue
        luma = luma_of(image)
        best, best_luma = max(early[span])
        share = sharpness(luma) / max(1e-6, best)
        yield Checked(clip.stem, keyframe.t_s, str(keyframe.reason), share, float(luma.mean()), best_luma)


def report(found: list[Checked]) -> str:
    bad = [one for one in found if one.is_bad]
    shares = sorted(one.sharp_share for one in found)
    words = f"{len(bad)} of {len(found)} keyframes are black or have less than {_BLURRED_SHARE} of the sharpness."
    if shares:
        words += (
            f" The tenth part lies below {shares[len(shares) // 10]:.2f}, the median is {shares[len(shares) // 2]:.2f}."
        )
    rows = [["clip", "t s", "reason", "share of the sharpest", "luma"]]
    rows += [[one.clip, f"{one.t_s:.2f}", one.reason, f"{one.sharp_share:.2f}", f"{one.luma:.0f}"] for one in bad]
    return words + ("\n\n" + table(rows) if bad else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="*", type=Path, help="default: four generated edits and the corpus")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path, default=_DOCS)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    generated = [folder_of(FULL, "development") / f"edit{n}_{group}.mp4" for n in (0, 1) for group in ("web", "hevc")]
    clips = options.clips or [clip for clip in generated if clip.exists()]
    clips += sorted(options.corpus.glob("*.mp4")) if options.corpus else []
    found: list[Checked] = []
    with DecoderPool(1) as pool:
        for clip in clips:
            found += check(pool, clip, read_truth(clip))
    print(report(found))  # noqa: T201 - the output
    options.out.mkdir(parents=True, exist_ok=True)
    source = "`python -m tests.bench.sharpness --corpus DIR`: " + ", ".join(clip.stem for clip in clips) + "."
    (options.out / "sharpness.md").write_text("\n\n".join(("# Sharp keyframes", source, report(found))) + "\n")
    (options.out / "sharpness.json").write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
