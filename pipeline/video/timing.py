"""A timeline that can be sorted by: times that stand still or run backwards are set right, and that is said. Pure.

Frames are asked for and found again by their PTS, so two of the same PTS would be one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from pipeline.video.index import SampleIndex

_STANDING_SHARE = 0.1
_USUAL_FPS = 25
_FAR = 2**61  # ticks; more would leave 64 bits


def with_sound_times(index: SampleIndex) -> SampleIndex:
    """`index` itself where decoding times only rise; else one whose bad steps are replaced by the usual step.

    Single repeated times are left alone: recorders write them.
    """
    steps = np.diff(index.dts)
    backwards = int((steps < 0).sum())
    standing = int((steps == 0).sum())
    if not backwards and standing <= _STANDING_SHARE * len(steps):
        return index
    usual = usual_step(steps, index)
    sound = np.minimum(np.where(steps > 0, steps, usual), _FAR // len(index))
    dts = index.dts[0] + np.concatenate([[0], np.cumsum(sound)])
    pts = dts + (index.pts - index.dts)
    shown = pts[index.is_shown]
    return dataclasses.replace(
        index,
        dts=dts,
        pts=pts,
        start_pts=int(shown.min()),
        end_pts=int(shown.max()) + usual + index.missing_end,
        warnings=(*index.warnings, f"timestamps out of order: {backwards + standing} of {len(steps)} were set right"),
    )


def usual_step(steps: NDArray[np.int64], index: SampleIndex) -> int:
    """Ticks from one frame to the next: the median of the `steps` that lead forward, else 25 frames a second."""
    rising = steps[steps > 0]
    if len(rising):
        return max(1, int(np.median(rising)))
    return max(1, round(1 / (_USUAL_FPS * index.facts.time_base)))
