"""How different two analysis thumbnails are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from pipeline.video.decode import Thumbnail

_BINS = 64
_COARSE_SIZE_PX = (16, 9)
_CHANGED_LEVELS, _CHANGED_LEVELS_MAX = 10, 18
_NOISE_FACTOR = 4.0
_BLACK_MEAN, _FLAT_DEVIATION = 24.0, 6.0


class Picture:
    """One thumbnail with what comparing needs: histogram, a 16x9 mean, a slightly blurred copy."""

    def __init__(self, thumbnail: Thumbnail) -> None:
        self.thumbnail = thumbnail
        histogram = np.bincount((thumbnail >> 2).ravel(), minlength=_BINS) / thumbnail.size
        self.histogram = np.convolve(histogram, (0.25, 0.5, 0.25), "same")
        coarse = cv2.resize(thumbnail, _COARSE_SIZE_PX, interpolation=cv2.INTER_AREA).astype(np.float64)
        self.coarse = coarse - coarse.mean()

    @cached_property
    def blurred(self) -> NDArray[np.uint8]:
        return np.asarray(cv2.GaussianBlur(self.thumbnail, (5, 5), 0), np.uint8)

    @cached_property
    def is_blank(self) -> bool:
        """Black, or of one colour: nothing to see."""
        return bool(self.thumbnail.mean() < _BLACK_MEAN or self.thumbnail.std() < _FLAT_DEVIATION)


@dataclass(frozen=True, slots=True)
class Change:
    """From one picture to another. `distance` in 0..1 is high after a cut; `area` in 0..1 is the changed share of
    the picture; `typical` is the median change in grey levels: near 0 when the camera stands still."""

    distance: float
    area: float
    typical: float


def change(before: Picture, after: Picture) -> Change:
    """Histogram distance, lost correlation of the coarse layout and mean difference, each capped and weighted."""
    histogram = 0.5 * float(np.abs(before.histogram - after.histogram).sum())
    energy = float((before.coarse**2).sum() * (after.coarse**2).sum())
    correlation = float((before.coarse * after.coarse).sum()) / np.sqrt(energy) if energy > 1.0 else 1.0
    mean = float(cv2.absdiff(before.thumbnail, after.thumbnail).mean()) / 255
    distance = (
        0.45 * min(1.0, histogram / 0.5)
        + 0.35 * min(1.0, max(0.0, (1 - correlation) / 0.7))
        + 0.2 * min(1.0, mean / 0.15)
    )
    levels = cv2.absdiff(before.blurred, after.blurred)
    typical = float(np.median(levels))
    area = float((levels > np.clip(_NOISE_FACTOR * typical, _CHANGED_LEVELS, _CHANGED_LEVELS_MAX)).mean())
    return Change(distance, area, typical)
