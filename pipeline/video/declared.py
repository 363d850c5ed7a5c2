"""What a file claims about itself, to be held against what it is: its length, its type by its name. Pure."""

from __future__ import annotations

import struct
from pathlib import PurePosixPath

from pipeline.video.sniff import MP4

_EBML_HEAD = b"\x1aE\xdf\xa3"
_EBML_SEGMENT = b"\x18\x53\x80\x67"
_SUFFIXES = {
    MP4: frozenset(("mp4", "m4v", "mov", "qt", "3gp", "3g2", "f4v", "m4a", "mqv", "ismv")),
    "matroska": frozenset(("mkv", "webm", "mka", "mk3d")),
    "avi": frozenset(("avi", "divx")),
    "flv": frozenset(("flv",)),
    "mpeg": frozenset(("mpg", "mpeg", "vob", "m2p", "ps", "mod", "mpe")),
    "mpegts": frozenset(("ts", "m2ts", "mts", "m2t", "tod", "trp")),
}
_KNOWN = frozenset().union(*_SUFFIXES.values()) | {"gif", "jpg", "jpeg", "png", "wmv", "asf", "ogv", "mp3", "wav"}


def suffix_of(name: str) -> str:
    """The name's suffix in lower case, without the dot; empty where it is none of letters and digits."""
    suffix = PurePosixPath(name).suffix[1:].lower()
    return suffix if len(suffix) <= 8 and suffix.isascii() and suffix.isalnum() else ""


def misnamed(name: str, container_format: str) -> str | None:
    """A warning where the name promises another container than the bytes are; unknown suffixes promise nothing."""
    suffix = suffix_of(name)
    if suffix not in _KNOWN or suffix in _SUFFIXES[container_format]:
        return None
    return f"declared type: the file is named .{suffix}, its bytes are {container_format}"


def declared_bytes(head: bytes, container_format: str) -> int | None:
    """How long the file should be by its first bytes; None where its container does not say."""
    if container_format == "avi" and len(head) >= 8:
        (riff_bytes,) = struct.unpack_from("<I", head, 4)
        return 8 + riff_bytes if riff_bytes else None
    if container_format == "matroska":
        return _segment_end(head)
    return None


def _segment_end(head: bytes) -> int | None:
    ebml = _vint(head, len(_EBML_HEAD))
    if ebml is None:
        return None
    at = ebml[0] + ebml[1]
    if head[at : at + 4] != _EBML_SEGMENT:
        return None
    segment = _vint(head, at + 4)
    return None if segment is None else segment[0] + segment[1]


def _vint(data: bytes, at: int) -> tuple[int, int] | None:
    """An EBML length at `at` and the place after it; None where it is cut short or says "unknown"."""
    if at >= len(data) or not data[at]:
        return None
    length = 9 - data[at].bit_length()
    if at + length > len(data):
        return None
    value = int.from_bytes(data[at : at + length], "big") & (1 << 7 * length) - 1
    return None if value == (1 << 7 * length) - 1 else (value, at + length)


def declared_duration_s(head: bytes, container_format: str) -> float:
    """How long the file says it plays, where FFmpeg would guess that from the bytes there are: AVI. Else 0."""
    at = head.find(b"avih", 0, 4096) if container_format == "avi" else -1
    if at < 0 or at + 28 > len(head):
        return 0.0
    frame_us, frames = struct.unpack_from("<I12xI", head, at + 8)
    return float(frame_us * frames / 1e6)
