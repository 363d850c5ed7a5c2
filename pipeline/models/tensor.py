"""From fitted images to a model's input array."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from pipeline.media import BgrImage
from pipeline.models.catalog import ColourOrder, Interpolation, Layout, Preprocess

_CV2_INTERPOLATION = {Interpolation.LINEAR: cv2.INTER_LINEAR, Interpolation.AREA: cv2.INTER_AREA}


def to_tensor(images: Sequence[BgrImage], preprocess: Preprocess) -> NDArray[np.float32]:
    """One float32 batch, (N, 3, H, W) or (N, H, W, 3), of images that share one size."""
    batch = np.stack(images).astype(np.float32)
    if preprocess.colour is ColourOrder.RGB:
        batch = batch[..., ::-1]
    mean = np.asarray(preprocess.mean, dtype=np.float32)
    batch = (batch - mean) * np.asarray(preprocess.scale, dtype=np.float32)
    if preprocess.layout is Layout.NCHW:
        batch = batch.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(batch)


def resize(image: BgrImage, width_px: int, height_px: int, interpolation: Interpolation) -> BgrImage:
    if image.shape[:2] == (height_px, width_px):
        return image
    resized = cv2.resize(image, (width_px, height_px), interpolation=_CV2_INTERPOLATION[interpolation])
    return resized.astype(np.uint8, copy=False)


def check_image(image: BgrImage) -> None:
    """Raises ValueError for anything but a non-empty (height, width, 3) uint8 array."""
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape or image.dtype != np.uint8:
        raise ValueError(f"not a BGR image: shape {image.shape}, dtype {image.dtype}")
