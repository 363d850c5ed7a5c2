"""Sample tables and evidence made by hand, for tests of the pure parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from pipeline.video.compare import Picture
from pipeline.video.evidence import Evidence, Run
from pipeline.video.index import SampleIndex, StreamFacts
from tests import clips

FPS = 30


def index_of(
    sizes: Sequence[int], keys: Sequence[int], *, codec: str = "h264", readable: Sequence[bool] | None = None
) -> SampleIndex:
    """A stream at 30 frames a second without B-frames, one sample after the other in the file."""
    count = len(sizes)
    is_key = np.zeros(count, bool)
    is_key[list(keys)] = True
    times = np.arange(count, dtype=np.int64)
    return SampleIndex(
        facts=StreamFacts("mp4", codec, b"", Fraction(1, FPS), 1280, 720),
        offset_bytes=np.cumsum(sizes).astype(np.int64) - np.array(sizes, np.int64),
        size_bytes=np.array(sizes, np.int64),
        dts=times,
        pts=times,
        is_key=is_key,
        is_shown=np.ones(count, bool),
        start_pts=0,
        end_pts=count,
        is_readable=np.ones(count, bool) if readable is None else np.array(readable, bool),
    )


def picture(scene: int, shift_px: int = 0) -> Picture:
    """The thumbnail of a scene of `tests.clips`, moved sideways; mirrored at its side, so that no edge shows."""
    luma = clips.scene(scene).mean(axis=2).astype(np.uint8)
    endless = np.roll(np.hstack([luma, luma[:, ::-1]]), 2 * shift_px, axis=1)
    return Picture(np.ascontiguousarray(endless[::2, : luma.shape[1] : 2]))


def blank(level: int = 4) -> Picture:
    return Picture(np.full((90, 160), level, np.uint8))


def evidence_of(pictures: Mapping[int, Picture]) -> Evidence:
    """Evidence in which each sample was decoded for itself."""
    evidence = Evidence()
    for sample, shown in pictures.items():
        evidence.add(Run((sample,)), {sample: shown})
    return evidence
