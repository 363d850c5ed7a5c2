"""Pictures for the page: scaled down, as data: URIs, within a budget for the whole page. Pure but for the port."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage

PAGE_BYTES = 12_000_000
"""JPEG bytes on one page; base64 makes a third more of them. What a laptop and a phone still open at once."""

MAX_CARDS = 6_000
MIN_CARDS_PER_VIDEO = 4
MAX_CARDS_PER_VIDEO = 60
_MIN_SIDE_PX = 120
_BYTES_PER_SQUARE_PX = 0.15  # of a 16:9 JPEG's longer side squared, at `jpeg.QUALITY`; measured, generous

ReadImage = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class Picture:
    """One embedded picture; `uri` is None where there is none, and `missing` says why."""

    uri: str | None
    missing: str = ""


def cards_per_video(videos: int) -> int:
    """How many keyframes of a video are shown in full, so that the page stays readable."""
    fair = MAX_CARDS // max(1, videos)
    return min(MAX_CARDS_PER_VIDEO, max(MIN_CARDS_PER_VIDEO, fair))


class Album:
    """Hands out the pictures of one page until its budget is spent."""

    def __init__(self, read_image: ReadImage, *, pictures: int, max_side_px: int, budget_bytes: int = PAGE_BYTES):
        self._read_image = read_image
        self._left_bytes = budget_bytes
        fair_px = math.isqrt(int(budget_bytes / (max(1, pictures) * _BYTES_PER_SQUARE_PX)))
        self.side_px = min(max_side_px, max(_MIN_SIDE_PX, fair_px))

    def picture(self, image: str | None, size_px: tuple[int, int]) -> Picture:
        """The picture called `image`, whose full size is `size_px` (width, height), as far as is known."""
        if image is None:
            return Picture(None, "no picture was stored")
        if self._left_bytes <= 0:
            return Picture(None, "left out to keep this page small")
        stored = self._read_image(image)
        pixels = _decoded(stored, self.side_px, size_px) if stored else None
        if pixels is None:
            return Picture(None, "the stored picture cannot be read" if stored else "the stored picture is gone")
        data = encode_jpeg(pixels, max_side_px=self.side_px)
        self._left_bytes -= len(data)
        return Picture(f"data:image/jpeg;base64,{base64.b64encode(data).decode('ascii')}")


def _decoded(stored: bytes, side_px: int, size_px: tuple[int, int]) -> BgrImage | None:
    """The pixels of a JPEG; the decoder itself halves what is more than twice as large as needed."""
    spare = max(size_px) / max(1, side_px)
    flag = cv2.IMREAD_COLOR
    for factor, reduced in ((8, cv2.IMREAD_REDUCED_COLOR_8), (4, cv2.IMREAD_REDUCED_COLOR_4),
                            (2, cv2.IMREAD_REDUCED_COLOR_2)):  # fmt: skip
        if spare >= factor:
            flag = reduced
            break
    try:
        pixels = cv2.imdecode(np.frombuffer(stored, np.uint8), flag)
    except cv2.error:
        return None
    return None if pixels is None else pixels.astype(np.uint8, copy=False)
