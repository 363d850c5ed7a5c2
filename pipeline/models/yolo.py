"""Detectors of the YOLO family: letterbox, the three output layouts, non-maximum suppression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.detections import Box, Detection, Findings
from pipeline.errors import FatalError, Reason
from pipeline.media import BgrImage
from pipeline.models.catalog import Fit, Head, ModelSpec, Preprocess
from pipeline.models.nonsense import NonsenseError
from pipeline.models.tensor import check_image, resize

YOLOX_STRIDES_PX = (8, 16, 32)
MAX_CANDIDATES = 3000
"""Best-scored pairs of anchor and label that enter the suppression: bounds its time on hostile images."""


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Where the image lies in the model's input: input = image · scale + offset, per axis."""

    image_width_px: int
    image_height_px: int
    scale_x: float
    scale_y: float
    left_px: int
    top_px: int

    def to_image(self, boxes: NDArray[np.float32]) -> NDArray[np.float64]:
        """(N, 4) left, top, right, bottom in input pixels → the same in image pixels, clipped to the image."""
        offset = np.array([self.left_px, self.top_px] * 2, dtype=np.float64)
        scale = np.array([self.scale_x, self.scale_y] * 2, dtype=np.float64)
        limit = np.array([self.image_width_px, self.image_height_px] * 2, dtype=np.float64)
        return np.clip((boxes.astype(np.float64) - offset) / scale, 0.0, limit)


def canvas_px(images: Sequence[BgrImage], *, width_px: int, height_px: int, stride_px: int) -> tuple[int, int]:
    """Width and height of the least canvas, in multiples of `stride_px`, on which every image lies as large as on
    one of `width_px` and `height_px`."""
    fitted = [_fitted_px(image, width_px, height_px) for image in images]
    width, height = (math.ceil((max(sides) - 1e-6) / stride_px) * stride_px for sides in zip(*fitted, strict=True))
    return width, height


def _fitted_px(image: BgrImage, width_px: int, height_px: int) -> tuple[float, float]:
    """Width and height of the image scaled to fit."""
    check_image(image)
    height, width = image.shape[:2]
    ratio = min(width_px / width, height_px / height)
    return width * ratio, height * ratio


def letterbox(image: BgrImage, *, width_px: int, height_px: int, preprocess: Preprocess) -> tuple[BgrImage, Letterbox]:
    """The image, scaled to fit, on a canvas of `preprocess.pad`; and how to find the way back."""
    fitted_width, fitted_height = _fitted_px(image, width_px, height_px)
    inner_width = min(width_px, max(1, round(fitted_width)))
    inner_height = min(height_px, max(1, round(fitted_height)))
    image_height, image_width = image.shape[:2]
    centred = preprocess.fit is Fit.LETTERBOX
    left = (width_px - inner_width) // 2 if centred else 0
    top = (height_px - inner_height) // 2 if centred else 0
    canvas = np.empty((height_px, width_px, 3), dtype=np.uint8)
    canvas[:] = preprocess.pad
    canvas[top : top + inner_height, left : left + inner_width] = resize(
        image, inner_width, inner_height, preprocess.interpolation
    )
    box = Letterbox(image_width, image_height, inner_width / image_width, inner_height / image_height, left, top)
    return canvas, box


def findings(
    output: NDArray[np.float32],
    spec: ModelSpec,
    labels: Sequence[str],
    box: Letterbox,
    *,
    width_px: int,
    height_px: int,
) -> Findings:
    """What one image's output says: detections best first, at most `spec.max_detections`.

    `output` is (4+C, anchors) for a `yolo` head, (anchors, 5+C) for `yolox`, (K, 6) for `end2end`, which has
    suppressed what overlaps within the model already. Raises FatalError(BAD_MODEL) when the shape does not go
    with the labels and the input, or the numbers are not scores and boxes: that is a broken export, and dropping
    such rows would turn it into silent negatives.
    """
    if spec.head is Head.END2END:
        return _end2end(output, spec, labels, box)
    if spec.head is Head.YOLO:
        corners, scores = _read_yolo(output, spec.name, labels)
    else:
        corners, scores = _read_yolox(output, spec.name, labels, width_px, height_px)
    if not (scores.min(initial=0.0) >= -1e-3 and scores.max(initial=0.0) <= 1.001):
        raise NonsenseError(spec.name, "its output holds scores that are not between 0 and 1 (NaN, infinite or logits)")
    anchor, label = _candidates(scores, spec.min_score)
    chosen = corners[anchor]
    if not bool(np.isfinite(chosen).all()):
        raise NonsenseError(spec.name, "its output holds boxes that are NaN or infinite")
    at = box.to_image(chosen)
    score = np.clip(scores[anchor, label], 0.0, 1.0)
    solid = (at[:, 2] > at[:, 0]) & (at[:, 3] > at[:, 1])
    at, label, score = at[solid], label[solid], score[solid]
    kept = suppress(at, label, iou=spec.nms_iou, limit=spec.max_detections)
    return Findings(tuple(_detection(labels[label[i]], score[i], at[i]) for i in kept))


def _end2end(output: NDArray[np.float32], spec: ModelSpec, labels: Sequence[str], box: Letterbox) -> Findings:
    """(K, 6): left, top, right, bottom in input pixels, score, class; rows without a finding score 0."""
    if output.ndim != 2 or output.shape[1] != 6:
        raise _bad(spec.name, f"its output has shape {output.shape} per image, expected (K, 6)")
    scores = output[:, 4]
    if not (scores.min(initial=0.0) >= -1e-3 and scores.max(initial=0.0) <= 1.001):
        raise NonsenseError(spec.name, "its output holds scores that are not between 0 and 1 (NaN, infinite or logits)")
    best = np.argsort(-scores, kind="stable")
    rows = output[best[scores[best] >= spec.min_score]]
    if not bool(np.isfinite(rows).all()):
        raise NonsenseError(spec.name, "its output holds boxes or classes that are NaN or infinite")
    classes = rows[:, 5]
    if not bool(np.isin(classes, np.arange(len(labels))).all()):
        raise NonsenseError(spec.name, f"its output names classes that are none of its {len(labels)} labels")
    at = box.to_image(rows[:, :4])
    solid = (at[:, 2] > at[:, 0]) & (at[:, 3] > at[:, 1])
    rows, at = rows[solid][: spec.max_detections], at[solid]
    found = zip(rows, at, strict=False)
    return Findings(tuple(_detection(labels[int(row[5])], min(row[4], np.float32(1.0)), where) for row, where in found))


def suppress(boxes: NDArray[np.float64], classes: NDArray[np.intp], *, iou: float, limit: int) -> list[int]:
    """Greedy non-maximum suppression within each class.

    `boxes` (N, 4) are left, top, right, bottom, best first. Returns the indices kept, best first: a box goes
    when a better one of its class overlaps it by more than `iou` (intersection over union).
    """
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    rest = np.arange(len(boxes))
    kept: list[int] = []
    while rest.size and len(kept) < limit:
        best, rest = int(rest[0]), rest[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = np.prod(np.clip(high - low, 0.0, None), axis=1)
        overlap = common / (area[best] + area[rest] - common)
        rest = rest[(overlap <= iou) | (classes[rest] != classes[best])]
    return kept


def _read_yolo(
    output: NDArray[np.float32], name: str, labels: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(4+C, anchors): centre x, centre y, width, height in input pixels, then C scores."""
    if output.ndim != 2 or output.shape[0] != 4 + len(labels):
        expected = f"(4 + {len(labels)} labels, anchors)"
        raise _bad(name, f"its output has shape {output.shape} per image, expected {expected}")
    rows = output.T
    with np.errstate(over="ignore", invalid="ignore"):
        return _corners(rows[:, :2], rows[:, 2:4]), rows[:, 4:]


def _read_yolox(
    output: NDArray[np.float32], name: str, labels: Sequence[str], width_px: int, height_px: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(anchors, 5+C): offsets within grid cells, log sizes in strides, objectness, then C scores.

    As in YOLOX's `demo_postprocess` (Megvii-BaseDetection/YOLOX, yolox/utils/demo_utils.py).
    """
    cells, strides = yolox_grid(width_px, height_px)
    if output.shape != (len(cells), 5 + len(labels)):
        expected = f"({len(cells)} anchors for {width_px}x{height_px}, 5 + {len(labels)} labels)"
        raise _bad(name, f"its output has shape {output.shape} per image, expected {expected}")
    with np.errstate(over="ignore", invalid="ignore"):
        centres = (output[:, :2] + cells) * strides
        return _corners(centres, np.exp(output[:, 2:4]) * strides), output[:, 4:5] * output[:, 5:]


def yolox_grid(width_px: int, height_px: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cells (anchors, 2) as x, y and strides (anchors, 1), finest grid first, row by row."""
    cells, strides = [], []
    for stride in YOLOX_STRIDES_PX:
        y, x = np.mgrid[: height_px // stride, : width_px // stride]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        strides.append(np.full((x.size, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


def _corners(centres: NDArray[np.float32], sizes: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)


def _candidates(scores: NDArray[np.float32], min_score: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs (anchor, label) that score at least `min_score`, best first.

    Every label of an anchor counts, not its best alone: a question asks about some labels only, and one
    that came close second is a doubt for the next stage, not a zero.
    """
    anchor, label = np.nonzero(scores >= min_score)
    order = np.argsort(-scores[anchor, label], kind="stable")[:MAX_CANDIDATES]
    return anchor[order], label[order]


def _detection(label: str, score: np.float32, box: NDArray[np.float64]) -> Detection:
    left, top, right, bottom = (float(value) for value in box)
    return Detection(label, float(score), Box(left, top, right, bottom))


def _bad(name: str, what: str) -> FatalError:
    return FatalError(Reason.BAD_MODEL, f"model '{name}': {what}")
