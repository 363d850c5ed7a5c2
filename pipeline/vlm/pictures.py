"""Which pictures are sent, and how large: near-duplicates left out, scaled to the budget of pixels and tokens. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from pipeline.cascade.vlm_part import ImagesPart
from pipeline.errors import PermanentError, Reason
from pipeline.jpeg import encode_jpeg

_THUMB_PX = 16
_SAME_MEAN, _SAME_MOST = 3.0, 12.0
"""Grey levels: two pictures are one when they differ by no more on average, and nowhere by more. What is small and
new, as a face in a corner, moves one cell of 16 x 16 by far more than the second."""
_REDUCED = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
_GOOD_ENOUGH = 0.8
"""JPEG halves and quarters while decoding, at a third of the processor time of decoding in full and scaling. That is
done where it loses no more than a fifth of the pixels that there is room for."""

Bgr = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Picture:
    """One keyframe that may be shown: its JPEG file, its place in the video, and how much earlier stages saw in it."""

    index: int
    jpeg: bytes
    width_px: int
    height_px: int
    interest: float


@dataclass(frozen=True, slots=True)
class Shown:
    """The pictures to send, in the video's order: `jpegs[i]` is keyframe `indices[i]`, about `tokens` tokens in all.

    `share` in 0..1 is the part of the pictures that differ which the budget had room for.
    """

    indices: tuple[int, ...]
    jpegs: tuple[bytes, ...]
    tokens: int
    share: float


def choose(pictures: Sequence[Picture], budget: ImagesPart) -> Shown:
    """The most interesting pictures that differ, within `budget`.

    Raises PermanentError(CORRUPT) for a JPEG that cannot be read: it was one of ours.
    """
    ranked = sorted(pictures, key=lambda picture: (-picture.interest, picture.index))
    room = min(len(ranked), budget.max_images)
    most_px = min(budget.max_pixels, budget.max_image_tokens // max(1, room) * budget.pixels_per_token)
    kept: list[tuple[Picture, bytes, int]] = []
    thumbs: list[NDArray[np.float32]] = []
    for picture in ranked:
        image = _fitting(picture, most_px) if len(kept) < room else _decoded(picture, cv2.IMREAD_REDUCED_COLOR_8)
        thumb = _thumb(image)
        if any(_same(thumb, other) for other in thumbs):
            continue
        thumbs.append(thumb)
        if len(kept) < room:
            height_px, width_px = image.shape[:2]
            kept.append((picture, _file(picture, image), budget.tokens(width_px, height_px)))
    kept.sort(key=lambda one: one[0].index)
    return Shown(
        indices=tuple(picture.index for picture, _, _ in kept),
        jpegs=tuple(jpeg for _, jpeg, _ in kept),
        tokens=sum(tokens for _, _, tokens in kept),
        share=len(kept) / len(thumbs) if thumbs else 1.0,
    )


def scaled_size(width_px: int, height_px: int, most_px: int) -> tuple[int, int]:
    """The largest size of the same shape with at most `most_px` pixels; never larger than it is."""
    if width_px * height_px <= most_px:
        return width_px, height_px
    scale = math.sqrt(most_px / (width_px * height_px))
    return max(1, math.floor(width_px * scale)), max(1, math.floor(height_px * scale))


def _same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    difference = np.abs(one - other)
    return bool(difference.mean() <= _SAME_MEAN and difference.max() <= _SAME_MOST)


def _thumb(image: Bgr) -> NDArray[np.float32]:
    """Shape (16, 16, 3), float32, BGR: means of every fourth pixel each way, where there are enough."""
    step = max(1, min(4, min(image.shape[:2]) // (2 * _THUMB_PX)))
    small = cv2.resize(image[::step, ::step], (_THUMB_PX, _THUMB_PX), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.float32)


def _fitting(picture: Picture, most_px: int) -> Bgr:
    """The picture with at most `most_px` pixels, decoded at the least cost that leaves enough of them."""
    width_px, height_px = scaled_size(picture.width_px, picture.height_px, most_px)
    factor = max(step for step in _REDUCED if step == 1 or _is_enough(picture, step, width_px * height_px))
    image = _decoded(picture, _REDUCED[factor])
    if image.shape[0] * image.shape[1] <= most_px:
        return image
    resized = cv2.resize(image, scaled_size(image.shape[1], image.shape[0], most_px), interpolation=cv2.INTER_LINEAR)
    return np.asarray(resized, np.uint8)


def _is_enough(picture: Picture, step: int, wanted_px: int) -> bool:
    return (picture.width_px // step) * (picture.height_px // step) >= _GOOD_ENOUGH * wanted_px


def _file(picture: Picture, image: Bgr) -> bytes:
    """The image as a JPEG; the stored file as it is where nothing was scaled."""
    is_whole = image.shape[:2] == (picture.height_px, picture.width_px)
    return picture.jpeg if is_whole else encode_jpeg(image)


def _decoded(picture: Picture, flags: int) -> Bgr:
    image = cv2.imdecode(np.frombuffer(picture.jpeg, np.uint8), flags) if picture.jpeg else None
    if image is None:
        raise PermanentError(Reason.CORRUPT, f"the stored picture of keyframe {picture.index} cannot be read")
    return np.asarray(image, np.uint8)
