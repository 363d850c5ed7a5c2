"""Making clips: for tests, the demo's montage and benchmarks. Reads and writes trusted local files in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np
from av.video.stream import VideoStream

from pipeline.media import BgrImage

FAST_H264: Mapping[str, str] = {"preset": "veryfast", "crf": "23"}


def write_clip(
    path: Path,
    frames: Iterable[BgrImage],
    fps: int | Fraction,
    codec: str = "libx264",
    options: Mapping[str, str] = FAST_H264,
    *,
    rotation_deg: int = 0,
    container_options: Mapping[str, str] | None = None,
    container_format: str | None = None,
) -> None:
    """Encodes frames of one even size as yuv420p. `rotation_deg`, clockwise, is how players shall turn it.

    The container follows the path's suffix unless `container_format` names one (FFmpeg's muxer names).
    """
    with av.open(str(path), "w", format=container_format, options=dict(container_options or {})) as container:
        stream: VideoStream | None = None
        for number, image in enumerate(frames):
            if stream is None:
                stream = cast("VideoStream", container.add_stream(codec, rate=fps, options=dict(options)))
                stream.height, stream.width = image.shape[:2]
                stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
                stream.codec_context.time_base = 1 / Fraction(fps)
                if rotation_deg:
                    stream.set_display_rotation(-rotation_deg)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24")
            frame.pts = number
            container.mux(stream.encode(frame))
        if stream is None:
            raise ValueError("a clip needs at least one frame")
        container.mux(stream.encode(None))


def read_clip(path: Path) -> list[BgrImage]:
    """Every frame of a small clip in display order, BGR as coded: rotation is not applied."""
    return list(clip_frames(path))


def clip_frames(path: Path) -> Iterator[BgrImage]:
    """The frames of a clip one by one; see `read_clip`."""
    with av.open(str(path), "r") as container:
        for frame in container.decode(video=0):
            yield cast("BgrImage", frame.to_ndarray(format="bgr24"))


def write_montage(
    path: Path,
    clips: Sequence[Path],
    shot_s: float,
    duration_s: float,
    width: int,
    height: int,
    fps: int,
) -> None:
    """One video of hard-cut shots of `shot_s` each, taken from `clips` in turn until `duration_s` is reached.

    Each shot goes on where its clip was left, from the start again at its end; pictures are scaled to fit,
    with black bars; `width` and `height` are in pixels. Clips are played at their own frame rate, resampled to `fps`.
    """
    if not clips:
        raise ValueError("a montage needs at least one clip")
    write_clip(path, _montage_frames(clips, shot_s, duration_s, (width, height), fps), fps)


def _montage_frames(
    clips: Sequence[Path], shot_s: float, duration_s: float, size_px: tuple[int, int], fps: int
) -> Iterator[BgrImage]:
    tapes = [_endless(clip, size_px, fps) for clip in clips]
    shot_frames = max(1, round(shot_s * fps))
    for number in range(round(duration_s * fps)):
        yield next(tapes[number // shot_frames % len(tapes)])


def _endless(path: Path, size_px: tuple[int, int], fps: int) -> Iterator[BgrImage]:
    """The clip's frames at `fps`, fitted to the size, over and over."""
    while True:
        shown = 0
        with av.open(str(path), "r") as container:
            stream = container.streams.video[0]
            step_s = 1 / float(stream.average_rate or fps)
            for number, frame in enumerate(container.decode(stream)):
                if (number + 1) * step_s * fps <= shown:
                    continue
                image = fitted(cast("BgrImage", frame.to_ndarray(format="bgr24")), size_px)
                while shown < (number + 1) * step_s * fps - 1e-6:
                    shown += 1
                    yield image
        if not shown:
            raise ValueError(f"{path} has no frames")


def fitted(image: BgrImage, size_px: tuple[int, int]) -> BgrImage:
    """`image` scaled to fit into (width, height), centred on black."""
    width_px, height_px = size_px
    scale = min(width_px / image.shape[1], height_px / image.shape[0])
    inner = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    canvas = np.zeros((height_px, width_px, 3), np.uint8)
    left, top = (width_px - inner[0]) // 2, (height_px - inner[1]) // 2
    canvas[top : top + inner[1], left : left + inner[0]] = cv2.resize(image, inner, interpolation=way)
    return canvas
