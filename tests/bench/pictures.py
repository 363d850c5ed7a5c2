"""Procedural footage: textured places, textured things that move through them, sensor noise. Pure.

A place is a picture larger than the frame, looked at through a camera that stands, pans, zooms or shakes. Everything
follows from a seed. Textures have energy at all scales, as photographs do, so that encoders spend their bits alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from pipeline.media import BgrImage

MARGIN_PX = 160
"""By how much a place is larger than the frame, on every side."""
_WORDS = ("EXIT", "Market Hall", "No. 27", "open", "PLATFORM 4", "bakery", "km 118", "north gate")


def cloud(generator: np.random.Generator, size_px: tuple[int, int], roughness: float) -> NDArray[np.float32]:
    """Noise over octaves, shape (height, width), float32 about 0 with deviation 1; rougher is finer."""
    width_px, height_px = size_px
    total = np.zeros((height_px, width_px), np.float32)
    cells, strength = 4, 1.0
    while cells < min(width_px, height_px):
        grid = generator.standard_normal((cells * height_px // width_px + 2, cells + 2)).astype(np.float32)
        total += strength * cv2.resize(grid, size_px, interpolation=cv2.INTER_CUBIC)
        cells, strength = cells * 2, strength * roughness
    return np.asarray((total - total.mean()) / total.std(), np.float32)


def place(seed: int, frame_px: tuple[int, int]) -> BgrImage:
    """A place with a floor, a wall, things and lettering, MARGIN_PX wider and higher than the frame on each side."""
    generator = np.random.default_rng(seed)
    width_px, height_px = frame_px[0] + 2 * MARGIN_PX, frame_px[1] + 2 * MARGIN_PX
    size_px = (width_px, height_px)
    base = generator.uniform(55, 175) + generator.uniform(-25, 25, 3)
    contrast = float(generator.uniform(12, 38))
    shading = cloud(generator, size_px, float(generator.uniform(0.65, 0.85)))
    tint = cloud(generator, size_px, 0.5)
    canvas = np.empty((height_px, width_px, 3), np.float32)
    for channel in range(3):
        canvas[..., channel] = base[channel] + contrast * (shading + generator.uniform(-0.5, 0.5) * tint)
    horizon = int(height_px * generator.uniform(0.3, 0.75))
    canvas[horizon:] += np.float32(generator.uniform(-45, 45)) + generator.uniform(-15, 15, 3).astype(np.float32)
    for _ in range(int(generator.integers(4, 11))):
        _furnish(canvas, generator)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def muted(generator: np.random.Generator) -> NDArray[np.float64]:
    """A colour as things have them: any brightness, little saturation."""
    return np.asarray(np.clip(generator.uniform(20, 235) + generator.uniform(-45, 45, 3), 5, 250), np.float64)


def _furnish(canvas: NDArray[np.float32], generator: np.random.Generator) -> None:
    """Puts a textured box, disc or lettering into the picture."""
    height_px, width_px = canvas.shape[:2]
    side_px = int(generator.integers(60, 320))
    left, top = int(generator.integers(0, width_px - side_px)), int(generator.integers(0, height_px - side_px))
    kind = int(generator.integers(0, 3))
    colour = muted(generator)
    if kind == 2:
        word = _WORDS[int(generator.integers(0, len(_WORDS)))]
        ink = np.zeros((height_px, width_px), np.uint8)
        cv2.putText(ink, word, (left, top + 60), cv2.FONT_HERSHEY_DUPLEX, side_px / 120, 255, 3)
        canvas[ink > 0] = colour
        return
    patch = thing(int(generator.integers(1 << 30)), side_px, colour, is_round=kind == 1)
    _blend(canvas, patch, left, top)


@dataclass(frozen=True, slots=True)
class Thing:
    """A textured sprite: `pixels` float32 (side, side, 3), `opacity` float32 (side, side, 1) in 0..1."""

    pixels: NDArray[np.float32]
    opacity: NDArray[np.float32]


def thing(seed: int, side_px: int, colour: NDArray[np.float64], *, is_round: bool) -> Thing:
    generator = np.random.default_rng(seed)
    texture = cloud(generator, (side_px, side_px), 0.8)[..., None]
    pixels = colour.astype(np.float32) + 25 * texture
    opacity = np.zeros((side_px, side_px), np.float32)
    half = side_px // 2
    if is_round:
        cv2.ellipse(opacity, (half, half), (half - 2, int(half * 0.8)), 0, 0, 360, 1.0, -1)
    else:
        opacity[2:-2, side_px // 8 : -side_px // 8] = 1.0
    soft = np.asarray(cv2.GaussianBlur(opacity, (5, 5), 0), np.float32)
    return Thing(np.asarray(pixels, np.float32), soft[..., None])


def _blend(canvas: NDArray[np.float32] | BgrImage, shown: Thing, left: int, top: int) -> None:
    """Lays a thing over the picture; what lies outside is cut off."""
    side = len(shown.pixels)
    x0, y0 = max(0, left), max(0, top)
    x1, y1 = min(canvas.shape[1], left + side), min(canvas.shape[0], top + side)
    if x0 >= x1 or y0 >= y1:
        return
    inner = (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))
    under = canvas[y0:y1, x0:x1].astype(np.float32)
    over = under + shown.opacity[inner] * (shown.pixels[inner] - under)
    canvas[y0:y1, x0:x1] = np.clip(over, 0, 255).astype(canvas.dtype)


@dataclass(frozen=True, slots=True)
class Mover:
    """A thing on a straight way with a slight swing; places in pixels of the frame, times in seconds."""

    thing: Thing
    start_s: float
    end_s: float
    from_px: tuple[float, float]
    to_px: tuple[float, float]

    def draw(self, canvas: BgrImage, t_s: float) -> None:
        if not self.start_s <= t_s < self.end_s:
            return
        done = (t_s - self.start_s) / (self.end_s - self.start_s)
        swing = 6 * np.sin(t_s * 9)
        left = self.from_px[0] + done * (self.to_px[0] - self.from_px[0])
        top = self.from_px[1] + done * (self.to_px[1] - self.from_px[1]) + swing
        _blend(canvas, self.thing, int(left), int(top))


@dataclass(frozen=True, slots=True)
class Camera:
    """How a place is looked at: `pan_px_s` of steady motion, `zoom_s` growth a second, `shake_px` of hand tremor."""

    pan_px_s: tuple[float, float] = (0.0, 0.0)
    zoom_s: float = 0.0
    shake_px: float = 0.0
    phase: float = 0.0

    def view(self, background: BgrImage, t_s: float, frame_px: tuple[int, int]) -> BgrImage:
        """What the camera sees `t_s` after its shot began."""
        shift = [MARGIN_PX + _bounced(pan * t_s, MARGIN_PX - 30) for pan in self.pan_px_s]
        if self.shake_px:
            shift[0] += self.shake_px * _tremor(t_s, self.phase)
            shift[1] += self.shake_px * _tremor(t_s, self.phase + 40)
        zoom = 1 + self.zoom_s * t_s
        if zoom == 1 and not self.shake_px:
            left, top = (round(value) for value in shift)
            return background[top : top + frame_px[1], left : left + frame_px[0]].copy()
        matrix = np.array([[zoom, 0, -shift[0] * zoom], [0, zoom, -shift[1] * zoom]], np.float64)
        seen = cv2.warpAffine(background, matrix, frame_px, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        return np.asarray(seen, np.uint8)


def _bounced(way: float, limit: float) -> float:
    """`way` folded into -limit..limit: a pan that turns round at the edge of the place."""
    folded = (way + limit) % (4 * limit)
    return folded - limit if folded <= 2 * limit else 3 * limit - folded


def _tremor(t_s: float, phase: float) -> float:
    """A hand's drift and tremor, about -1..1."""
    return float(
        0.5 * np.sin(1.7 * t_s + phase) + 0.3 * np.sin(5.3 * t_s + 2 * phase) + 0.2 * np.sin(13.1 * t_s + 3 * phase)
    )


class SensorNoise:
    """Grain of a deviation in grey levels, from a pool that is shifted about from frame to frame."""

    def __init__(self, seed: int, frame_px: tuple[int, int]) -> None:
        self._generator = np.random.default_rng(seed)
        self._frame_px = frame_px
        shape = (frame_px[1] + 64, frame_px[0] + 64, 3)
        coarse = self._generator.standard_normal(shape).astype(np.float32)
        luma = self._generator.standard_normal(shape[:2]).astype(np.float32)[..., None]
        self._grain = 0.4 * coarse + 0.9 * luma
        self._scaled: dict[float, NDArray[np.uint8]] = {}

    def add(self, image: BgrImage, deviation: float) -> BgrImage:
        if deviation <= 0:
            return image
        if deviation not in self._scaled:
            self._scaled[deviation] = np.clip(128 + deviation * self._grain, 0, 255).astype(np.uint8)
        grain = self._scaled[deviation]
        left, top = (int(value) for value in self._generator.integers(0, 64, 2))
        width_px, height_px = self._frame_px
        shifted = grain[top : top + height_px, left : left + width_px]
        return np.asarray(cv2.addWeighted(image, 1.0, shifted, 1.0, -128.0), np.uint8)


def draw_all(canvas: BgrImage, movers: Sequence[Mover], t_s: float) -> None:
    for mover in movers:
        mover.draw(canvas, t_s)
