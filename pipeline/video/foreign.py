"""Samples of another codec than their stream's: streams that are cut together may change it in the middle. Pure.

A transport stream announces the change in a table, but FFmpeg's packets do not say; the bytes do, by the first numbers
of their parts. H.264's slices are of type 1 and 5, so odd (ITU-T H.264, table 7-1); HEVC's first bytes are even in
its base layer (H.265, 7.3.1.2); MPEG-1 and -2 begin with codes that neither may have (H.262, table 6-1).
"""

from __future__ import annotations

from collections.abc import Iterator

_START = b"\0\0\1"
_LOOKED_AT_BYTES = 16 * 1024
_H264_SLICES = frozenset((1, 5))
_H264_UNREFERRED = frozenset((6, 9, 10, 11, 12))
_H264_ODD = frozenset((1, 5, 7))
_MPEG_FIRST = frozenset((0x00, 0xB2, 0xB3, 0xB8))
_VOP = 0xB6


def is_foreign(codec: str, sample: bytes | memoryview) -> bool:
    """Whether `sample`, with start codes, is surely none of `codec`; False for codecs that have none, and in doubt."""
    codes = list(_codes(bytes(sample[:_LOOKED_AT_BYTES])))
    if not codes:
        return False
    match codec:
        case "h264":
            return codes[0] in _MPEG_FIRST or not (any(map(_is_h264_slice, codes)) or all(map(_is_h264_other, codes)))
        case "hevc":
            return any(map(_is_no_hevc, codes))
        case "mpeg1video" | "mpeg2video":
            return codes[0] not in _MPEG_FIRST
        case "mpeg4":
            return _VOP not in codes
    return False


def _is_h264_slice(code: int) -> bool:
    return code & 0x80 == 0 and code & 0x1F in _H264_SLICES


def _is_h264_other(code: int) -> bool:
    """Parameters and the like: those that nothing refers to say so in the two bits before their type."""
    return code & 0x80 == 0 and (code & 0x1F > 12 or code & 0x1F in {7, 8} or code in _H264_UNREFERRED)


def _is_no_hevc(code: int) -> bool:
    return code & 0x80 != 0 or (code & 1 == 1 and code & 0x1F in _H264_ODD)


def _codes(data: bytes) -> Iterator[int]:
    """The byte after each start code."""
    at = data.find(_START)
    while 0 <= at < len(data) - 3:
        yield data[at + 3]
        at = data.find(_START, at + 3)
