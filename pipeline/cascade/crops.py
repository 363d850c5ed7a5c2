"""Parts of keyframes that an earlier stage's detector pointed at: what a later stage is shown. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.cascade.rules import CropPart
from pipeline.detections import Box, Detection, Findings
from pipeline.media import BgrImage


@dataclass(frozen=True, slots=True)
class View:
    """What a model is shown of a keyframe; `box` says where it lies, None where it is all of it."""

    image: BgrImage
    box: Box | None = None


def views(image: BgrImage, crop: CropPart | None, found: Findings | None) -> list[View]:
    """What a stage with `crop` is shown of a keyframe on which the earlier stage `found` something.

    All of it where there is nothing to crop: not to be found is no answer.
    """
    if crop is None or found is None:
        return [View(image)]
    boxes = [
        detection.box
        for detection in sorted(found.detections, key=lambda detection: -detection.score)
        if detection.box is not None and detection.label in crop.labels and detection.score >= crop.min_score
    ]
    height_px, width_px = image.shape[:2]
    cut = [_widened(box, crop.margin, width_px, height_px) for box in boxes[: crop.most]]
    return [_view(image, box) for box in cut if box is not None] or [View(image)]


def merged(seen: Sequence[tuple[View, Findings]]) -> Findings:
    """What was found on a keyframe's views, in pixels of the keyframe, best first."""
    found = [_placed(detection, view.box) for view, findings in seen for detection in findings.detections]
    is_readable = all(findings.is_readable for _, findings in seen)
    return Findings(tuple(sorted(found, key=lambda detection: -detection.score)), is_readable)


def _widened(box: Box, margin: float, width_px: int, height_px: int) -> Box | None:
    """`box` with a margin of its sides around it, in whole pixels within the image; None where nothing is left."""
    corners = (box.left_px, box.top_px, box.right_px, box.bottom_px)
    if not all(map(math.isfinite, corners)):
        return None
    across_px = margin * (box.right_px - box.left_px)
    down_px = margin * (box.bottom_px - box.top_px)
    left, top = max(0, math.floor(box.left_px - across_px)), max(0, math.floor(box.top_px - down_px))
    right = min(width_px, math.ceil(box.right_px + across_px))
    bottom = min(height_px, math.ceil(box.bottom_px + down_px))
    return Box(left, top, right, bottom) if right > left and bottom > top else None


def _view(image: BgrImage, box: Box) -> View:
    rows, columns = slice(int(box.top_px), int(box.bottom_px)), slice(int(box.left_px), int(box.right_px))
    return View(np.ascontiguousarray(image[rows, columns]), box)


def _placed(detection: Detection, view: Box | None) -> Detection:
    if view is None:
        return detection
    box = detection.box
    if box is None:
        return replace(detection, box=view)
    placed = Box(
        box.left_px + view.left_px, box.top_px + view.top_px, box.right_px + view.left_px, box.bottom_px + view.top_px
    )
    return replace(detection, box=placed)
