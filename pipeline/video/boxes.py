"""ISO base media boxes: finding `moov` with few reads, and walking boxes in memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.errors import PermanentError, Reason
from pipeline.video.limits import Limits
from pipeline.video.source import ByteRange, Source

_MAX_TOP_LEVEL_BOXES = 100_000
_MAX_READS = 1000
_INDEX_CONTAINERS = {
    **dict.fromkeys((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf", b"mvex", b"tref"), 0),
    **dict.fromkeys((b"udta", b"ilst"), 0),
    **dict.fromkeys((b"meta", b"iprp", b"ipco"), 4),
    **dict.fromkeys((b"dref", b"stsd", b"keys"), 8),
}
"""Boxes of an index that hold boxes, and how many bytes of theirs come first."""
_READ_AHEAD_BYTES = 64 * 1024


class UnreadableMp4Error(Exception):
    """The file is legal, or may be, but beyond this reader: let FFmpeg's demuxer try."""


@dataclass(frozen=True, slots=True)
class BoxHeader:
    kind: bytes
    header_bytes: int
    total_bytes: int


def box_header(data: bytes | memoryview, at: int, rest_bytes: int) -> BoxHeader | None:
    """The header of the box at `at`; None when `data` ends within it. Size 0 means: all of `rest_bytes`."""
    if at + 8 > len(data):
        return None
    size, kind = struct.unpack_from(">I4s", data, at)
    header_bytes = 8
    if size == 1:
        if at + 16 > len(data):
            return None
        (size,) = struct.unpack_from(">Q", data, at + 8)
        header_bytes = 16
    elif size == 0:
        size = rest_bytes
    return BoxHeader(kind, header_bytes, size)


def children(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and body of each box in `data`; stops at the first one that does not fit."""
    at = 0
    while (header := box_header(data, at, len(data) - at)) is not None:
        if header.total_bytes < header.header_bytes or at + header.total_bytes > len(data):
            return
        yield header.kind, data[at + header.header_bytes : at + header.total_bytes]
        at += header.total_bytes


def find(data: memoryview, *path: bytes) -> memoryview | None:
    """The body of the first box at `path`, or None."""
    for kind in path:
        found = next((body for name, body in children(data) if name == kind), None)
        if found is None:
            return None
        data = found
    return data


def refuse_too_many_boxes(moov: memoryview, limits: Limits) -> None:
    """Raises TOO_LARGE for an index of more boxes than writers make: readers walk them several times."""
    found, waiting = 0, [moov]
    while waiting:
        for kind, body in children(waiting.pop()):
            found += 1
            if found > limits.max_boxes:
                raise PermanentError(Reason.TOO_LARGE, f"an index of more than {limits.max_boxes} parts (boxes)")
            if kind in _INDEX_CONTAINERS:
                waiting.append(body[_INDEX_CONTAINERS[kind] :])


def read_moov(source: Source, head: bytes, limits: Limits) -> memoryview:
    """The body of `moov`, wherever it stands; `head` is the beginning of the file, already read.

    Raises PermanentError TRUNCATED when the file ends before a whole `moov`, TOO_LARGE for a huge one, CORRUPT for
    sizes that no box can have and for endless boxes before it, and UnreadableMp4Error for a file that is cut into
    fragments before any `moov`.
    """
    at, window, window_at, reads = 0, head, 0, 0
    for _ in range(_MAX_TOP_LEVEL_BOXES):
        if at + 8 > source.size_bytes:
            raise PermanentError(Reason.TRUNCATED, "the file ends before its index (the moov box)")
        if not window_at <= at <= window_at + len(window) - 16:
            window, window_at = source.read_ranges([ByteRange(at, _READ_AHEAD_BYTES)])[0], at
            reads += 1
        header = box_header(window, at - window_at, source.size_bytes - at)
        if header is None:
            raise PermanentError(Reason.TRUNCATED, "the file ends before its index (the moov box)")
        if header.total_bytes < header.header_bytes:
            raise PermanentError(Reason.CORRUPT, f"at byte {at} stands a box of {header.total_bytes} bytes")
        if reads > _MAX_READS:
            break
        if header.kind == b"moov":
            return _whole_moov(source, at, header, window, window_at, limits)
        if header.kind == b"moof":
            raise UnreadableMp4Error("movie fragments without a moov before them")
        at += header.total_bytes
    raise PermanentError(Reason.CORRUPT, f"the first {at} bytes are small parts (boxes) without an index among them")


def _whole_moov(
    source: Source, at: int, header: BoxHeader, window: bytes, window_at: int, limits: Limits
) -> memoryview:
    if header.total_bytes > limits.max_moov_bytes:
        raise PermanentError(Reason.TOO_LARGE, f"an index of {header.total_bytes} bytes (the moov box)")
    if at + header.total_bytes > source.size_bytes:
        raise PermanentError(Reason.TRUNCATED, "the file ends within its index (the moov box)")
    have = window[at - window_at : at - window_at + header.total_bytes]
    missing_bytes = header.total_bytes - len(have)
    if missing_bytes > 0:
        have += source.read_ranges([ByteRange(at + len(have), missing_bytes)])[0]
    if len(have) < header.total_bytes:
        raise PermanentError(Reason.TRUNCATED, "the file ends within its index (the moov box)")
    return memoryview(have)[header.header_bytes :]
