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
    pixels = np.stack(images)
    count, height, width, _ = pixels.shape
    planes_first = preprocess.layout is Layout.NCHW
    batch = np.empty((count, 3, height, width) if planes_first else (count, height, width, 3), dtype=np.float32)
    for i in range(3):  # plane by plane: broadcasting over an innermost axis of three is several times slower
        source = pixels[..., 2 - i if preprocess.colour is ColourOrder.RGB else i]
        plane = batch[:, i] if planes_first else batch[..., i]
        np.subtract(source, np.float32(preprocess.mean[i]), out=plane, dtype=np.float32)
        np.multiply(plane, np.float32(preprocess.scale[i]), out=plane)
    return batch


def resize(image: BgrImage, width_px: int, height_px: int, interpolation: Interpolation) -> BgrImage:
    if image.shape[:2] == (height_px, width_px):
        return image
    resized = cv2.resize(image, (width_px, height_px), interpolation=_CV2_INTERPOLATION[interpolation])
    return resized.astype(np.uint8, copy=False)


def check_image(image: BgrImage) -> None:
    """Raises ValueError for anything but a non-empty (height, width, 3) uint8 array."""
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape or image.dtype != np.uint8:
        raise ValueError(f"not a BGR image: shape {image.shape}, dtype {image.dtype}")
