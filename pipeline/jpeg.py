"""Images to JPEG, in memory."""

from __future__ import annotations

import cv2

from pipeline.media import BgrImage

QUALITY = 85  # libjpeg's scale; 3.3 ms for 720p, below it block edges begin to show in flat areas


def encode_jpeg(image: BgrImage, *, max_side_px: int | None = None) -> bytes:
    """`image` as a JPEG file, scaled down first when its longer side exceeds `max_side_px`.

    Raises ValueError for an image without pixels, or with a side beyond JPEG's 65,500.
    """
    height_px, width_px = image.shape[:2]
    if max_side_px is not None and max(height_px, width_px) > max_side_px:
        scale = max_side_px / max(height_px, width_px)
        size = (max(1, round(width_px * scale)), max(1, round(height_px * scale)))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(image.dtype)
    ok, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY]) if image.size else (False, None)
    if not ok or data is None:
        raise ValueError(f"an image of shape {image.shape} cannot be a JPEG")
    return data.tobytes()
