"""Decoded frames to BGR as people expect it: the stream's matrix and range, high dynamic range brought down. Pure.

What a stream does not say is guessed as players do: BT.709 from HD sizes on, else BT.601; limited range. PQ and HLG
(ITU-R BT.2100) are tone-mapped simply: diffuse white of 203 cd/m² (BT.2408) becomes nearly white, what is brighter
is compressed exponentially, BT.2020 primaries are turned into BT.709's (BT.2087), colours outside are clipped.
"""

from __future__ import annotations

from functools import cache

import av
import cv2
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from pipeline.media import BgrImage

_UNSPECIFIED = 2
_PQ, _HLG = 16, 18
_HD_WIDTH_PX, _HD_HEIGHT_PX = 1280, 576
_WHITE_NITS, _HLG_PEAK_NITS, _HLG_GAMMA = 203.0, 1000.0, 1.2
_KNEE = 0.7
_STEPS = 4096
_BT2020_TO_BT709_BGR = np.array(
    [[1.1187, -0.1006, -0.0182], [-0.0083, 1.1329, -0.1246], [-0.0728, -0.5876, 1.6605]], np.float32
)


def bgr(frame: av.VideoFrame, size_px: tuple[int, int]) -> BgrImage:
    """The frame at `size_px` (width, height), shape (height, width, 3). Raises av.FFmpegError."""
    width_px, height_px = size_px
    is_hd = frame.width >= _HD_WIDTH_PX or frame.height > _HD_HEIGHT_PX
    source = Colorspace.ITU709 if int(frame.colorspace) == _UNSPECIFIED and is_hd else None
    converted = frame.reformat(
        width=width_px,
        height=height_px,
        format="bgr24",
        src_colorspace=source,
        interpolation="AREA",
        threads=1,
    )
    image = np.asarray(converted.to_ndarray(), np.uint8)
    transfer = int(frame.color_trc)
    return _tone_mapped(image, transfer) if transfer in {_PQ, _HLG} else image


def _tone_mapped(image: BgrImage, transfer: int) -> BgrImage:
    light = _light(transfer)[image]
    light = np.clip(cv2.transform(light, _BT2020_TO_BT709_BGR), 0, None)
    shown = np.where(light <= _KNEE, light, 1 - (1 - _KNEE) * np.exp((_KNEE - light) / (1 - _KNEE)))
    return np.asarray(_encoded()[(shown * (_STEPS - 1)).astype(np.uint16)], np.uint8)


@cache
def _light(transfer: int) -> NDArray[np.float32]:
    """Light relative to diffuse white for each of the 256 codes: the inverse of the transfer function."""
    code = np.arange(256) / 255
    if transfer == _PQ:
        m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875  # SMPTE ST 2084
        root = code ** (1 / m2)
        nits = 10_000 * (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1)
    else:
        a, b, c = 0.17883277, 0.28466892, 0.55991073  # ARIB STD-B67
        scene = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
        nits = _HLG_PEAK_NITS * scene**_HLG_GAMMA
    return np.asarray(nits / _WHITE_NITS, np.float32)


@cache
def _encoded() -> NDArray[np.uint8]:
    """sRGB codes of _STEPS values of light in 0..1."""
    light = np.arange(_STEPS) / (_STEPS - 1)
    coded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.asarray(np.round(255 * coded), np.uint8)
