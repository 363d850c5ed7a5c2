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
_SMALL_SIZE_PX = (80, 45)
_SHADING_PX = 4.0
_MIN_TEXTURE = 1.5
_BAR_LEVEL, _BAR_MARGIN_PX = 22, 9
_MIN_OVERLAP = 0.4
_UNLIKE, _ALIKE = 0.2, 0.55


class Picture:
    """One thumbnail with what comparing needs: histogram, a 16x9 mean, a slightly blurred copy."""

    def __init__(self, thumbnail: Thumbnail) -> None:
        self.thumbnail = thumbnail
        histogram = np.bincount((thumbnail >> 2).ravel(), minlength=_BINS) / thumbnail.size
        self.histogram = np.convolve(histogram, (0.25, 0.5, 0.25), "same")
        coarse = cv2.resize(thumbnail, _COARSE_SIZE_PX, interpolation=cv2.INTER_AREA).astype(np.float64)
        self.coarse = coarse - coarse.mean()

    @cached_property
    def texture(self) -> NDArray[np.float32]:
        """What is left without brightness and shading, shape (45, 80), float32: survives flashes and exposure.

        0 in and beside black bars, whose edges would make all letterboxed scenes look alike.
        """
        small = cv2.resize(self.thumbnail, _SMALL_SIZE_PX, interpolation=cv2.INTER_AREA)
        lit = cv2.erode((small > _BAR_LEVEL).astype(np.uint8), np.ones((_BAR_MARGIN_PX, _BAR_MARGIN_PX), np.uint8))
        details = small.astype(np.float32) - cv2.GaussianBlur(small.astype(np.float32), (0, 0), _SHADING_PX)
        return np.asarray(details * lit, np.float32)

    @cached_property
    def blurred(self) -> NDArray[np.uint8]:
        return np.asarray(cv2.GaussianBlur(self.thumbnail, (5, 5), 0), np.uint8)

    @cached_property
    def sharpness(self) -> float:
        """The deviation of the Laplacian: of two pictures of one scene the blurred one has less."""
        return float(cv2.Laplacian(self.thumbnail, cv2.CV_32F).std())

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
    """Histogram distance, lost correlation of the coarse layout and mean difference, each capped and weighted; less
    where both show the same details, be it brighter, darker or shifted."""
    histogram = 0.5 * float(np.abs(before.histogram - after.histogram).sum())
    energy = float((before.coarse**2).sum() * (after.coarse**2).sum())
    correlation = float((before.coarse * after.coarse).sum()) / np.sqrt(energy) if energy > 1.0 else 1.0
    mean = float(cv2.absdiff(before.thumbnail, after.thumbnail).mean()) / 255
    distance = (
        0.45 * min(1.0, histogram / 0.5)
        + 0.35 * min(1.0, max(0.0, (1 - correlation) / 0.7))
        + 0.2 * min(1.0, mean / 0.15)
    )
    if distance > 0.2:
        distance *= 1 - float(np.clip((likeness(before, after) - _UNLIKE) / (_ALIKE - _UNLIKE), 0, 1))
    levels = np.asarray(cv2.absdiff(before.blurred, after.blurred), np.uint8)
    typical = median_level(levels)
    area = float((levels > np.clip(_NOISE_FACTOR * typical, _CHANGED_LEVELS, _CHANGED_LEVELS_MAX)).mean())
    return Change(distance, area, typical)


def median_level(levels: NDArray[np.uint8]) -> float:
    """The median of grey levels, by counting: a quarter of the time of `np.median`."""
    counted = np.cumsum(np.bincount(levels.ravel(), minlength=256))
    low, high = np.searchsorted(counted, np.array([(levels.size - 1) // 2, levels.size // 2]), side="right").tolist()
    return (float(low) + float(high)) / 2


def likeness(one: Picture, other: Picture) -> float:
    """The correlation of the details of two pictures, in place or shifted against each other: -1..1.

    Near 1 for the same scene under any exposure, before a camera that turned by less than half a picture; about 0
    for different scenes. The shift is where the phases correlate best (Kuglin and Hines, 1975).
    """
    in_place = _correlation(one.texture, other.texture)
    if in_place > _ALIKE:
        return in_place
    (right_px, down_px), _ = cv2.phaseCorrelate(one.texture, other.texture)
    right, down = round(right_px), round(down_px)
    height, width = one.texture.shape
    shared = max(0, height - abs(down)) * max(0, width - abs(right))
    if shared < _MIN_OVERLAP * height * width:
        return in_place
    rows, other_rows = _overlap(down, height)
    columns, other_columns = _overlap(right, width)
    return max(in_place, _correlation(one.texture[rows, columns], other.texture[other_rows, other_columns]))


def _overlap(shift: int, length: int) -> tuple[slice, slice]:
    """The parts of two lines that show the same when the second is shifted."""
    return slice(max(0, -shift), length - max(0, shift)), slice(max(0, shift), length - max(0, -shift))


def _correlation(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Pearson's, 0 where either shows no detail."""
    one, other = one - one.mean(), other - other.mean()
    deviations = float(one.std()), float(other.std())
    if min(deviations) < _MIN_TEXTURE:
        return 0.0
    return float((one * other).mean()) / (deviations[0] * deviations[1])
