"""Which pictures are sent, and how large: near-duplicates left out, scaled to the budget of pixels and tokens. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    different = _different(ranked)
    kept = sorted(different[: _affordable(different, budget)], key=lambda picture: picture.index)
    if not kept:
        return Shown((), (), 0, 1.0)
    most_px = min(budget.max_pixels, budget.max_image_tokens * budget.pixels_per_token // len(kept))
    sizes = [scaled_size(picture.width_px, picture.height_px, most_px) for picture in kept]
    return Shown(
        indices=tuple(picture.index for picture in kept),
        jpegs=tuple(_scaled(picture, size) for picture, size in zip(kept, sizes, strict=True)),
        tokens=sum(budget.tokens(*size) for size in sizes),
        share=len(kept) / len(different),
    )


def _affordable(pictures: Sequence[Picture], budget: ImagesPart) -> int:
    return min(len(pictures), budget.max_images)


def scaled_size(width_px: int, height_px: int, most_px: int) -> tuple[int, int]:
    """The largest size of the same shape with at most `most_px` pixels; never larger than it is."""
    if width_px * height_px <= most_px:
        return width_px, height_px
    scale = math.sqrt(most_px / (width_px * height_px))
    return max(1, math.floor(width_px * scale)), max(1, math.floor(height_px * scale))


def _different(ranked: Sequence[Picture]) -> list[Picture]:
    """Without those that look like an earlier one."""
    kept: list[Picture] = []
    thumbs: list[NDArray[np.float32]] = []
    for picture in ranked:
        thumb = _thumb(picture)
        if not any(_same(thumb, other) for other in thumbs):
            kept.append(picture)
            thumbs.append(thumb)
    return kept


def _same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    difference = np.abs(one - other)
    return bool(difference.mean() <= _SAME_MEAN and difference.max() <= _SAME_MOST)


def _thumb(picture: Picture) -> NDArray[np.float32]:
    """Shape (16, 16, 3), float32, BGR; decoded at an eighth of the size, which JPEG does at little cost."""
    image = _decoded(picture, cv2.IMREAD_REDUCED_COLOR_8)
    small = cv2.resize(image, (_THUMB_PX, _THUMB_PX), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.float32)


def _scaled(picture: Picture, size: tuple[int, int]) -> bytes:
    """The picture as a JPEG of at most `size`; the file as it is where that is its size already."""
    if size == (picture.width_px, picture.height_px):
        return picture.jpeg
    factor = max(step for step in _REDUCED if step * size[0] <= picture.width_px or step == 1)
    image = _decoded(picture, _REDUCED[factor])
    if image.shape[:2] != (size[1], size[0]):
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    return encode_jpeg(image)


def _decoded(picture: Picture, flags: int) -> NDArray[np.uint8]:
    image = cv2.imdecode(np.frombuffer(picture.jpeg, np.uint8), flags) if picture.jpeg else None
    if image is None:
        raise PermanentError(Reason.CORRUPT, f"the stored picture of keyframe {picture.index} cannot be read")
    return np.asarray(image, np.uint8)


def jpegs_of(images: Mapping[int, NDArray[np.uint8]], indices: Sequence[int]) -> dict[int, bytes]:
    """JPEG files of keyframes that lie in memory."""
    return {index: encode_jpeg(images[index]) for index in indices}
