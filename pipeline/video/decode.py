"""Decoding selected samples, one by one, straight from their bytes: no seek, no demuxer, one thread.

A key sample is fed alone and flushed. Another sample is reached from the key before it. The loop filter costs a key
13 to 20 % (a thumbnail does not show it): it is left off where far more keys are looked at than become images.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import av
import cv2
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from numpy.typing import NDArray

from pipeline.errors import PermanentError, Reason
from pipeline.media import BgrImage
from pipeline.video.colour import bgr
from pipeline.video.decoders import open_decoder
from pipeline.video.index import StreamFacts, square_pixels

THUMBNAIL_SIZE_PX = (160, 90)
"""Width and height of an analysis thumbnail."""

Thumbnail = NDArray[np.uint8]
"""Luma, shape (90, 160), uint8, as coded: neither rotated nor with square pixels."""

_KEPT_BYTES = 64 * 1024 * 1024
_DIRECT_LUMA = ("yuv", "gray", "nv12", "p010")


@dataclass(frozen=True, slots=True)
class CodedSample:
    """One sample's bytes, with its number in the index and its PTS."""

    number: int
    pts: int
    payload: bytes


class SampleDecoder:
    """A decoder for samples of one stream. `frames_decoded` counts every frame that it put out."""

    def __init__(self, facts: StreamFacts, *, max_pixels: int, loop_filter: bool) -> None:
        self._facts = facts
        self._max_pixels = max_pixels
        self._options = {} if loop_filter else {"skip_loop_filter": "all"}
        self._context = self._opened()
        self.frames_decoded = 0

    def _opened(self) -> VideoCodecContext:
        context = open_decoder(self._facts.codec)
        # output_corrupt: a sample whose references are missing is still put out (see `evidence.Run`)
        context.options = {**self._options, "max_pixels": str(self._max_pixels), "flags": "output_corrupt"}
        if self._facts.extradata:
            context.extradata = self._facts.extradata
        if self._facts.codec.startswith("msmpeg4"):  # whose pictures do not say their size
            context.width, context.height = self._facts.width_px, self._facts.height_px
        return context

    def decode(
        self,
        run: Sequence[CodedSample],
        wanted_pts: frozenset[int],
        *,
        skip_unreferenced: bool = False,
    ) -> dict[int, av.VideoFrame]:
        """The frames of `wanted_pts`, by PTS, from a run of samples that begins with a key sample.

        Frames that cannot be decoded are absent. What is decoded on the way is counted and dropped; pictures that
        no other refers to are not decoded at all with `skip_unreferenced`.
        """
        found: dict[int, av.VideoFrame] = {}
        self._context.skip_frame = "NONREF" if skip_unreferenced else "DEFAULT"
        try:
            for sample in run:
                packet = av.Packet(sample.payload)
                packet.pts = sample.pts
                self._take(self._context.decode(packet), wanted_pts, found)
            self._take(self._context.decode(None), wanted_pts, found)
            self._context.flush_buffers()
        except av.error.MemoryError:
            raise  # the process is at its limit: that says nothing about the file
        except av.FFmpegError:
            self._context = self._opened()
        return found

    def _take(
        self, frames: Sequence[av.VideoFrame], wanted_pts: frozenset[int], found: dict[int, av.VideoFrame]
    ) -> None:
        self.frames_decoded += len(frames)
        for frame in frames:
            if frame.pts is not None and frame.pts in wanted_pts:
                found[frame.pts] = frame


class KeptFrames:
    """Decoded frames by sample, the most recent ones up to 64 MiB: what analysis decoded whole is not decoded again."""

    def __init__(self, max_bytes: int = _KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._frames: OrderedDict[int, av.VideoFrame] = OrderedDict()
        self._bytes = 0

    def keep(self, sample: int, frame: av.VideoFrame) -> None:
        if sample in self._frames:
            return
        self._frames[sample] = frame
        self._bytes += _frame_bytes(frame)
        while self._bytes > self._max_bytes and len(self._frames) > 1:
            _, dropped = self._frames.popitem(last=False)
            self._bytes -= _frame_bytes(dropped)

    def only(self, samples: Iterable[int]) -> None:
        """Drops all others."""
        wanted = set(samples)
        self._frames = OrderedDict((sample, frame) for sample, frame in self._frames.items() if sample in wanted)
        self._bytes = sum(map(_frame_bytes, self._frames.values()))

    def get(self, sample: int) -> av.VideoFrame | None:
        return self._frames.get(sample)


def _frame_bytes(frame: av.VideoFrame) -> int:
    return sum(plane.buffer_size for plane in frame.planes)


def is_intra(frame: av.VideoFrame) -> bool:
    """Whether the picture stands for itself; containers list keys that do not (intra refresh)."""
    return frame.pict_type in {PictureType.I, PictureType.SI, PictureType.BI, PictureType.NONE}


def thumbnail(frame: av.VideoFrame) -> Thumbnail:
    """Area-averaged luma; large pictures are strided first, to about twice the thumbnail's size."""
    width_px, height_px = THUMBNAIL_SIZE_PX
    luma = _luma(frame)
    step = max(1, min(luma.shape[0] // (2 * height_px), luma.shape[1] // (2 * width_px)))
    small = cv2.resize(luma[::step, ::step], THUMBNAIL_SIZE_PX, interpolation=cv2.INTER_AREA)
    if small.dtype == np.uint16:
        small = np.right_shift(small.astype(np.uint16), frame.format.components[0].bits - 8)
    return np.ascontiguousarray(small, np.uint8)


def _luma(frame: av.VideoFrame) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The luma plane, shape (height, width), uint8, or uint16 for deeper little-endian formats."""
    name, bits = frame.format.name, frame.format.components[0].bits
    if not name.startswith(_DIRECT_LUMA) or name.endswith("be") or name.startswith(("yuyv", "p010")):
        frame = frame.reformat(format="gray", threads=1)
        bits = 8
    plane = frame.planes[0]
    flat = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, abs(plane.line_size))
    if bits > 8:
        return flat.view("<u2")[: frame.height, : frame.width]
    return flat[: frame.height, : frame.width]


def upright_image(frame: av.VideoFrame, facts: StreamFacts, max_image_pixels: int) -> BgrImage:
    """The picture as people see it: square pixels, mirrored and turned as the container says, BGR.

    More than `max_image_pixels` are scaled down to about that many.
    """
    aspect = facts.sample_aspect
    width_px, height_px = square_pixels(frame.width, frame.height, aspect)
    if width_px * height_px > max_image_pixels:
        scale = (max_image_pixels / (width_px * height_px)) ** 0.5
        width_px, height_px = max(1, int(width_px * scale)), max(1, int(height_px * scale))
    try:
        image = bgr(frame, (width_px, height_px))
    except av.FFmpegError as error:
        raise PermanentError(Reason.CORRUPT, f"a frame could not be converted: {error}") from error
    if facts.mirrored:
        image = image[:, ::-1]
    return np.ascontiguousarray(np.rot90(image, -facts.rotation_deg // 90 % 4))
