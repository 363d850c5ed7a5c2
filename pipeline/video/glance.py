"""One sample decoded without the pictures it predicts from, or only its beginning: what it says about itself.

A sample that predicts codes two facts that cost next to nothing to read: which blocks it could not predict (a new scene
leaves it none), and where the predicted ones moved from. Neither needs the pictures before it, so no key is read or
decoded. What is left out at the end of its bytes is missing at the bottom of the picture; nothing else is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import av
import numpy as np
from av.sidedata.motionvectors import MotionVectors
from av.video.frame import PictureType
from numpy.typing import NDArray

from pipeline.video.decoders import open_decoder
from pipeline.video.index import StreamFacts

GLANCED_CODECS = frozenset(("h264",))
"""Codecs whose decoder in FFmpeg tells its motion vectors and needs no picture before."""

_ROW_PX = 16
_STILL_PX = 1.5
_MIN_ROWS = 3
_PTS = 1


@dataclass(frozen=True, slots=True)
class Glance:
    """What one predicting sample codes. `intra` is the share of the seen picture that was not predicted, `moving` the
    share predicted from elsewhere than most of it was, `camera_px` how far most of it moved since its reference;
    `rows` is the share of the picture that was seen, from the top."""

    intra: float
    moving: float
    camera_px: float
    rows: float


def glance(facts: StreamFacts, payloads: Sequence[bytes], *, is_whole: bool, max_pixels: int) -> Glance | None:
    """What the last of `payloads` says; those before it only give the decoder pictures to miss less.

    `is_whole` is False where only the beginning of the last one is given. None where nothing of it could be decoded.
    A decoder of its own (0.07 ms), as one that was used before leaves its old pictures and vectors where nothing new
    is decoded.
    """
    context = open_decoder(facts.codec)
    # output_corrupt: put out although references are missing; ec 0: what is missing stays empty
    context.options = {
        "flags": "output_corrupt",
        "flags2": "+export_mvs",
        "ec": "0",
        "skip_loop_filter": "all",
        "max_pixels": str(max_pixels),
    }
    if facts.extradata:
        context.extradata = facts.extradata
    *before, last = [_ended(payload, facts.extradata) for payload in payloads]
    if not last:
        return None
    frames: list[av.VideoFrame] = []
    for payload in [*filter(None, before), last, None]:  # None: put out what is left
        packet = None if payload is None else av.Packet(payload)
        if packet is not None:
            packet.pts = _PTS if payload is last else _PTS - 1
        try:
            frames += context.decode(packet)
        except av.error.MemoryError:
            raise  # the process is at its limit: that says nothing about the file
        except av.FFmpegError:
            continue
    shown = [frame for frame in frames if frame.pts == _PTS]
    return _seen(shown[0], is_whole=is_whole) if shown else None


def _ended(payload: bytes, extradata: bytes | None) -> bytes:
    """The payload, its last unit's length corrected to what is there; unchanged where units are marked by start codes
    (ISO/IEC 14496-15, 5.3.3; Annex B)."""
    if not extradata or extradata[0] != 1 or len(extradata) < 5:
        return payload
    prefix, at = (extradata[4] & 3) + 1, 0
    while at + prefix <= len(payload):
        length = int.from_bytes(payload[at : at + prefix], "big")
        end = at + prefix + length
        if end > len(payload):
            left = len(payload) - at - prefix
            return payload[:at] + left.to_bytes(prefix, "big") + payload[at + prefix :]
        at = end
    return payload[:at]


def _seen(frame: av.VideoFrame, *, is_whole: bool) -> Glance | None:
    height_px = _decoded_px(frame, is_whole=is_whole)
    if height_px < _MIN_ROWS * _ROW_PX:
        return None
    share = min(1.0, height_px / frame.height)
    if frame.pict_type in {PictureType.I, PictureType.SI}:
        return Glance(1.0, 0.0, 0.0, share)
    vectors = _vectors(frame)
    vectors = vectors[(vectors["source"] < 0) & (vectors["dst_y"] < height_px)]
    area_px = vectors["w"].astype(np.float64) * vectors["h"]
    whole_px = float(frame.width * min(height_px, frame.height))
    intra = float(np.clip(1 - area_px.sum() / whole_px, 0, 1))
    if not len(vectors):
        return Glance(1.0, 0.0, 0.0, share)
    scale = np.maximum(1, vectors["motion_scale"]).astype(np.float64)
    right, down = vectors["motion_x"] / scale, vectors["motion_y"] / scale
    camera = float(np.median(right)), float(np.median(down))
    away = np.abs(right - camera[0]) + np.abs(down - camera[1]) > _STILL_PX
    return Glance(intra, float(area_px[away].sum() / whole_px), float(np.hypot(*camera)), share)


def _vectors(frame: av.VideoFrame) -> NDArray[np.void]:
    found = frame.side_data.get("MOTION_VECTORS")
    if isinstance(found, MotionVectors):
        return np.asarray(found.to_ndarray())
    return np.zeros(0, [(name, np.int32) for name in _VECTOR_FIELDS])


_VECTOR_FIELDS = ("source", "w", "h", "dst_y", "motion_x", "motion_y", "motion_scale")


def _decoded_px(frame: av.VideoFrame, *, is_whole: bool) -> int:
    """How many lines from the top were decoded: new buffers are zero, and no decoded row of blocks is all zero. The row
    in which the bytes end is left out."""
    plane = frame.planes[0]
    lines = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, abs(plane.line_size))[: frame.height]
    rows = len(lines) // _ROW_PX
    is_decoded = lines[: rows * _ROW_PX, ::8].reshape(rows, -1).any(axis=1)
    if is_decoded.all():
        return frame.height if is_whole else (rows - 1) * _ROW_PX
    first_missing = int(is_decoded.argmin())
    return max(0, first_missing - (0 if is_whole else 1)) * _ROW_PX
