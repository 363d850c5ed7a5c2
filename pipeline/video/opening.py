"""From a source to its checked sample table: sniff, then the quickest reader that can."""

from __future__ import annotations

import dataclasses

from pipeline.errors import PermanentError, Reason
from pipeline.video.boxes import UnreadableMp4Error, read_moov
from pipeline.video.declared import declared_bytes, declared_duration_s, misnamed
from pipeline.video.demux import demuxed_index
from pipeline.video.index import SampleIndex, checked
from pipeline.video.limits import Limits
from pipeline.video.metadata import refuse_long_scripts
from pipeline.video.mp4 import mp4_index
from pipeline.video.packets import Claims
from pipeline.video.sniff import MP4, SNIFF_BYTES, container_format
from pipeline.video.source import ByteRange, Source
from pipeline.video.timing import with_sound_times


def read_index(source: Source, limits: Limits) -> SampleIndex:
    """The checked sample table of a source. Raises PermanentError with the reason why there is none."""
    if source.size_bytes > limits.max_file_bytes:
        raise PermanentError(Reason.TOO_LARGE, f"{source.size_bytes} bytes exceed {limits.max_file_bytes}")
    head = source.read_ranges([ByteRange(0, SNIFF_BYTES)])[0]
    name = container_format(head)
    index = checked(with_sound_times(_table(source, head, name, limits)), limits)
    warning = misnamed(source.name, name)
    return dataclasses.replace(index, warnings=(*index.warnings, warning)) if warning else index


def _table(source: Source, head: bytes, name: str, limits: Limits) -> SampleIndex:
    if name == MP4:
        try:
            return mp4_index(read_moov(source, head, limits), source.size_bytes, limits)
        except UnreadableMp4Error:
            pass
    if name == "flv":
        refuse_long_scripts(source, head, limits)
    missing_bytes = max(0, (declared_bytes(head, name) or 0) - source.size_bytes)
    claims = Claims(declared_duration_s(head, name), missing_bytes, limits.max_duration_s)
    return demuxed_index(source, name, limits, claims)
