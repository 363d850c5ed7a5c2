"""Image classifiers: resize and crop, probabilities to labels."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from pipeline.detections import Detection, Findings
from pipeline.errors import FatalError, Reason
from pipeline.media import BgrImage
from pipeline.models.catalog import Fit, ModelSpec, Preprocess
from pipeline.models.nonsense import NonsenseError
from pipeline.models.tensor import check_image, resize


def prepare(image: BgrImage, preprocess: Preprocess, *, input_px: int) -> BgrImage:
    """The (input_px, input_px, 3) view of the image that the classifier is to see.

    With `resize_px`, the image is resized to that first (in proportion, where `input_px` is not the default)
    and the centre is taken.
    """
    check_image(image)
    side = input_px
    if preprocess.resize_px is not None:
        side = max(input_px, round(preprocess.resize_px * input_px / preprocess.input_px))
    height, width = image.shape[:2]
    if preprocess.fit is Fit.COVER:
        ratio = side / min(width, height)
        width, height = max(side, round(width * ratio)), max(side, round(height * ratio))
    else:
        width = height = side
    resized = resize(image, width, height, preprocess.interpolation)
    if preprocess.jpeg_quality is not None:
        resized = _through_jpeg(resized, preprocess.jpeg_quality)
    left, top = (width - input_px) // 2, (height - input_px) // 2
    return resized[top : top + input_px, left : left + input_px]


def findings(output: NDArray[np.float32], spec: ModelSpec, labels: Sequence[str]) -> Findings:
    """What one image's output (C,) says: every label with its probability, best first.

    Raises FatalError(BAD_MODEL) when there are not as many numbers as labels, or they are no probabilities.
    """
    if output.shape != (len(labels),):
        raise _bad(spec.name, f"its output has shape {output.shape} per image, expected ({len(labels)} labels,)")
    if not bool(np.isfinite(output).all()):
        raise NonsenseError(spec.name, "its output holds NaN or infinite numbers")
    scores = softmax(output) if spec.logits else output
    if scores.min() < -1e-3 or scores.max() > 1.001:
        raise NonsenseError(spec.name, "its output is not between 0 and 1: if these are logits, say `logits: true`")
    scores = np.clip(scores, 0.0, 1.0)
    order = np.argsort(-scores, kind="stable")
    return Findings(tuple(Detection(labels[i], float(scores[i])) for i in order))


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Over the one axis of (C,) finite numbers."""
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum(), dtype=np.float32)


def _through_jpeg(image: BgrImage, quality: int) -> BgrImage:
    _, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    if decoded is None:
        raise RuntimeError("OpenCV could not decode a JPEG it had just encoded")
    return decoded.astype(np.uint8, copy=False)


def _bad(name: str, what: str) -> FatalError:
    return FatalError(Reason.BAD_MODEL, f"model '{name}': {what}")
