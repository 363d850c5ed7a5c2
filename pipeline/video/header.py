"""How large a picture says it is, in its own header: the container may say something else."""

from __future__ import annotations

import contextlib
import struct

import av

from pipeline.video.decoders import open_decoder
from pipeline.video.index import StreamFacts

_ANY_SIZE = str(2**31 - 1)
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF markers; the others in between are tables


def coded_size_px(facts: StreamFacts, payload: bytes) -> tuple[int, int]:
    """Width and height that a sample's bytes declare, however large; (0, 0) where they declare none.

    Only the headers are read: no picture is decoded, and no memory for one is asked for.
    """
    if facts.codec == "mjpeg":  # whose decoder forgets sizes beyond what FFmpeg itself can hold
        return _jpeg_size_px(payload)
    if facts.codec == "av1":  # whose decoder reads no headers without the picture; it keeps to max_pixels by itself
        return 0, 0
    context = open_decoder(facts.codec)
    context.skip_frame = "ALL"
    context.options = {"max_pixels": _ANY_SIZE}
    if facts.extradata:
        context.extradata = facts.extradata
    with contextlib.suppress(av.FFmpegError, MemoryError):
        context.decode(av.Packet(payload))
    return context.width, context.height


def _jpeg_size_px(payload: bytes) -> tuple[int, int]:
    """From the frame header, by walking the markers before it (ITU-T T.81, B.1)."""
    at = 2
    while at + 9 <= len(payload) and payload[at] == 0xFF:
        length, height_px, width_px = struct.unpack_from(">HxHH", payload, at + 2)
        if payload[at + 1] in _JPEG_FRAMES:
            return width_px, height_px
        at += 2 + length
    return 0, 0
