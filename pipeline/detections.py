"""Values about what models see in an image."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """Corners in pixels of the keyframe image, left-top inclusive, right-bottom exclusive."""

    left_px: float
    top_px: float
    right_px: float
    bottom_px: float


@dataclass(frozen=True, slots=True)
class Detection:
    """A label with its score in 0..1; `box` is None when the whole image was classified."""

    label: str
    score: float
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """All that one model said about one image, best first.

    Not `is_readable` where its numbers made no sense: then nothing is known, which is not that nothing was found.
    """

    detections: tuple[Detection, ...]
    is_readable: bool = True

    def score(self, labels: Collection[str]) -> float:
        """The highest score of any of `labels`; 0 where none was seen, NaN where nothing is known."""
        if not self.is_readable:
            return math.nan
        return max((d.score for d in self.detections if d.label in labels), default=0.0)


@dataclass(frozen=True, slots=True)
class Scored:
    """What a model said about a batch: `findings[i]` belongs to the i-th image.

    `cpu_s` is what it cost, `device_s` how long an accelerator was kept; 0 where there is none.
    """

    findings: tuple[Findings, ...]
    cpu_s: float
    device_s: float = 0.0
