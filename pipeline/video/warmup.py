"""One tiny video of our own through all that a decoder child does, before the first child is forked.

Libraries load modules and build tables when they are first used. A confined child can load nothing any more, and what
is built before the fork is built once.
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
_FPS = 4
_CONTAINERS = ("mov", "matroska")  # one read by this project, one by FFmpeg


def warm_up() -> None:
    """Loads, sets up and tries everything; what is wrong with the installation fails here."""
    cv2.setNumThreads(1)
    av.logging.set_level(None)
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
    for container_format in _CONTAINERS:
        extractor = Extractor(_Memory(_clip(container_format)), KeyframeSettings(per_minute=60), Limits())
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


def _clip(container_format: str) -> bytes:
    """Motion JPEG with a change of picture in the middle."""
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream("mjpeg", rate=_FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        stream.codec_context.thread_count = 1
        for number in range(_FRAMES):
            image = np.full((48, 64, 3), 220 if number < _FRAMES // 2 else 30, np.uint8)
            image[8:24, number : number + 16] = 128
            frame = av.VideoFrame.from_ndarray(image, format="bgr24").reformat(format="yuvj420p", threads=1)
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()
