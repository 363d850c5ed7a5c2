"""Small synthetic clips for all tests. Frames are 320x180; their pixels tell where they belong.

`numbered` frames carry their index as a row of sixteen black or white squares along the bottom, so order, seeks and
drops can be checked exactly; `frame_number` reads it back through any codec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np
from av.audio.stream import AudioStream

from pipeline.media import BgrImage
from pipeline.video.synthesis import FAST_H264, write_clip

WIDTH_PX, HEIGHT_PX = 320, 180
FPS = 30
_BITS = 16
_SQUARE_PX = WIDTH_PX // _BITS


def scene(seed: int) -> BgrImage:
    """A still picture with blurred shapes of its own; scenes of different seeds differ everywhere."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (5, 8, 3), np.uint8)
    image = cv2.resize(coarse, (WIDTH_PX, HEIGHT_PX), interpolation=cv2.INTER_CUBIC)
    return np.asarray(image, np.uint8)


def with_number(image: BgrImage, number: int) -> BgrImage:
    """A copy with `number` written along the bottom edge, lowest bit at the left."""
    marked = image.copy()
    for bit in range(_BITS):
        marked[-_SQUARE_PX:, bit * _SQUARE_PX : (bit + 1) * _SQUARE_PX] = 255 if number >> bit & 1 else 0
    return marked


def frame_number(image: BgrImage) -> int:
    """The number that `with_number` wrote, from an image of any size and the same shape."""
    upright = cv2.resize(image, (WIDTH_PX, HEIGHT_PX), interpolation=cv2.INTER_AREA)
    row = upright[-_SQUARE_PX + 6 : -6].mean(axis=(0, 2))
    centres = row.reshape(_BITS, _SQUARE_PX)[:, 6:-6].mean(axis=1)
    return int(sum(1 << bit for bit in range(_BITS) if centres[bit] > 127))


def numbered(count: int, seed: int = 1) -> Iterator[BgrImage]:
    """A picture that drifts sideways, one pixel a frame, with the frame's number."""
    image = scene(seed)
    for number in range(count):
        yield with_number(np.roll(image, number, axis=1), number)


def cut_frames(shots_s: tuple[float, ...], fps: int = FPS) -> Iterator[BgrImage]:
    """Hard cuts: shots of the given lengths, each another scene with a slow drift."""
    for seed, shot_s in enumerate(shots_s):
        image = scene(100 + seed)
        for number in range(round(shot_s * fps)):
            yield np.roll(image, number // 6, axis=1)


def moving_frames(
    duration_s: float, motion_s: tuple[tuple[float, float], ...], fps: int = FPS, noise: float = 0.0
) -> Iterator[BgrImage]:
    """A still scene, with noise of the given deviation, through which a bright square runs in `motion_s`."""
    generator = np.random.default_rng(7)
    background = scene(3).astype(np.float32)
    for number in range(round(duration_s * fps)):
        image = background.copy()
        for start_s, end_s in motion_s:
            if start_s <= number / fps < end_s:
                left = int((number / fps - start_s) / (end_s - start_s) * (WIDTH_PX - 48))
                image[60:108, left : left + 48] = (40, 240, 240)
        if noise:
            image += generator.normal(0, noise, image.shape).astype(np.float32)
        yield np.clip(image, 0, 255).astype(np.uint8)


def write_numbered(
    path: Path,
    count: int = 90,
    codec: str = "libx264",
    options: Mapping[str, str] = FAST_H264,
    fps: int = FPS,
    **more: object,
) -> Path:
    """A clip of `numbered` frames; `more` goes to `write_clip`."""
    write_clip(path, numbered(count), fps, codec, options, **more)  # type: ignore[arg-type]
    return path


def write_cuts(path: Path, shots_s: tuple[float, ...] = (2.0, 3.0, 2.0)) -> Path:
    write_clip(path, cut_frames(shots_s), FPS)
    return path


def write_phone_like(path: Path, frames: Iterator[BgrImage]) -> Path:
    """As a phone writes: a key every second wherever scenes begin, no B-frames, plenty of bits."""
    options = {"preset": "veryfast", "g": "30", "keyint_min": "30", "sc_threshold": "0", "bf": "0", "crf": "18"}
    write_clip(path, frames, FPS, "libx264", options)
    return path


def write_audio_only(path: Path, codec: str = "aac", duration_s: float = 1.0) -> Path:
    """A tone without pictures, in the container of the path's suffix."""
    rate, step = 48000, 1024
    with av.open(str(path), "w") as container:
        stream = cast("AudioStream", container.add_stream(codec, rate=rate))
        for start in range(0, int(duration_s * rate), step):
            tone = np.sin(np.arange(start, start + step) * 0.05, dtype=np.float32)[None] * 0.3
            frame = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def truncated(source: Path, target: Path, share: float) -> Path:
    """A copy of the first `share` of a file."""
    data = source.read_bytes()
    target.write_bytes(data[: int(len(data) * share)])
    return target


def faststart(path: Path) -> dict[str, str]:
    """The container options that put an MP4's index first (for `write_clip`)."""
    return {"movflags": "faststart"} if path.suffix in {".mp4", ".mov"} else {}
