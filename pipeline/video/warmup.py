"""Videos of our own through all that a decoder child does: before the first child is forked, and in every child.

Libraries load modules and build tables when they are first used. A confined child can load nothing any more, and what
is built before the fork is built once. A forked process then pays for every page of memory when it first touches it:
a child does so on our video, before it says that it is ready, so that replacing a decoder is on no upload's bill.
"""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Sequence

import av
import cv2
import numpy as np

from pipeline.media import KeyframeSettings
from pipeline.video.extract import Extractor
from pipeline.video.limits import Limits
from pipeline.video.source import ByteRange

_FRAMES = 24
_REHEARSED_FRAMES = 4
_FPS = 4
_CONTAINERS = ("mov", "matroska")  # one read by this project, one by FFmpeg


def warm_up() -> bytes:
    """Loads, sets up and tries everything; a short video for `rehearse`. A broken installation fails here."""
    cv2.setNumThreads(1)
    av.logging.set_level(None)
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
    for container_format in _CONTAINERS:
        rehearse(_clip(container_format, _FRAMES))
    return _clip(_CONTAINERS[0], _REHEARSED_FRAMES)


def rehearse(clip: bytes) -> None:
    """Takes a video from its bytes to the images of its keyframes."""
    extractor = Extractor(_Memory(clip), KeyframeSettings(per_minute=60), Limits())
    list(extractor.images(extractor.findings().choices))


class _Memory:
    """A `Source` over bytes in memory."""

    name = "warm-up"

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        return [self._data[wanted.offset_bytes : wanted.end_bytes] for wanted in ranges]


def _clip(container_format: str, frames: int) -> bytes:
    """Motion JPEG with a change of picture in the middle."""
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream("mjpeg", rate=_FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        stream.codec_context.thread_count = 1
        for number in range(frames):
            image = np.full((48, 64, 3), 220 if number < frames // 2 else 30, np.uint8)
            image[8:24, number : number + 16] = 128
            frame = av.VideoFrame.from_ndarray(image, format="bgr24").reformat(format="yuvj420p", threads=1)
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()
