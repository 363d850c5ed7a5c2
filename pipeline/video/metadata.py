"""Metadata that FFmpeg would take minutes over: it compares every new name with all before it. Bounded before that."""

from __future__ import annotations

from pipeline.errors import PermanentError, Reason
from pipeline.video.limits import Limits
from pipeline.video.source import ByteRange, Source

_FLV_HEAD_BYTES, _FLV_TAG_BYTES = 9, 11
_FLV_VIDEO, _FLV_SCRIPT = 9, 18
_WINDOW_BYTES = 64 * 1024
_MAX_TAGS = 1000
_SIMPLE_TAG = b"\x67\xc8"
"""The identifier of a name with its value in Matroska."""


class NameCounter:
    """Counts names in the bytes of a Matroska file as its head is read; chance finds are far below the limit."""

    def __init__(self, container_format: str, limits: Limits) -> None:
        self._left = limits.max_names
        self._is_counting = container_format == "matroska"

    def saw(self, data: bytes) -> None:
        if self._is_counting:
            self._left -= data.count(_SIMPLE_TAG)

    @property
    def is_exceeded(self) -> bool:
        return self._left < 0


def refuse_long_scripts(source: Source, head: bytes, limits: Limits) -> None:
    """Raises TOO_LARGE for an FLV file with too much script data (its metadata) before the first picture."""
    at, window, window_at, scripts_bytes = _FLV_HEAD_BYTES + 4, head, 0, 0
    for _ in range(_MAX_TAGS):
        if not window_at <= at <= window_at + len(window) - _FLV_TAG_BYTES:
            window, window_at = source.read_ranges([ByteRange(min(at, source.size_bytes), _WINDOW_BYTES)])[0], at
        tag = window[at - window_at : at - window_at + _FLV_TAG_BYTES]
        kind = tag[0] & 0x1F if len(tag) == _FLV_TAG_BYTES else _FLV_VIDEO
        if kind == _FLV_VIDEO:
            return
        body_bytes = int.from_bytes(tag[1:4], "big")
        scripts_bytes += body_bytes if kind == _FLV_SCRIPT else 0
        if scripts_bytes > limits.max_script_bytes:
            detail = f"{scripts_bytes} bytes of metadata before the first picture exceed {limits.max_script_bytes}"
            raise PermanentError(Reason.TOO_LARGE, detail)
        at += _FLV_TAG_BYTES + body_bytes + 4
