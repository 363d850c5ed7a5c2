"""Samples' bytes by their numbers, from few ranged reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from pipeline.video.decode import CodedSample
from pipeline.video.index import SampleIndex
from pipeline.video.source import READ_GAP_BYTES, ByteRange, Source, coalesce

KEPT_BYTES = 48 * 1024 * 1024
_PER_REQUEST_BYTES = 16 * 1024 * 1024
_WHOLE_FILE_BYTES = 1_000_000


class SampleReader:
    """Reads samples in batches, neighbouring ones in one range (see `coalesce`), and keeps the recent ones.

    A file of up to 1 MB is read in one range: less than one more request costs. `ranges` and `bytes_read` count
    what was asked for; samples `gap_bytes` apart share a range.
    """

    def __init__(self, source: Source, index: SampleIndex, *, max_kept_bytes: int = KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._source, self._index = source, index
        self.gap_bytes = READ_GAP_BYTES
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._whole: bytes | None = None
        self.ranges = self.bytes_read = 0

    def read(self, samples: Iterable[int], heads: Mapping[int, int] | None = None) -> dict[int, CodedSample]:
        """Each readable sample by its number; those that the file does not hold whole are absent.

        Of the samples in `heads` only so many bytes are read, unless they are wanted whole too.
        """
        index = self._index
        lengths = {sample: int(index.size_bytes[sample]) for sample in samples}
        for sample, limit_bytes in (heads or {}).items():
            lengths.setdefault(sample, min(limit_bytes, int(index.size_bytes[sample])))
        wanted = sorted(sample for sample in lengths if index.is_readable[sample])
        found = {s: payload[: lengths[s]] for s in wanted if (payload := self._held(s)) is not None}
        found.update(self._fetched({s: lengths[s] for s in wanted if s not in found}))
        return {s: CodedSample(s, int(index.pts[s]), payload) for s, payload in found.items()}

    def _held(self, sample: int) -> bytes | None:
        if sample in self._index.payloads:
            return self._index.payloads[sample]
        return self._kept.get(sample)

    def _fetched(self, missing: Mapping[int, int]) -> dict[int, bytes]:
        index = self._index
        if missing and self._source.size_bytes <= _WHOLE_FILE_BYTES:
            return self._sliced(missing)
        places = {
            s: ByteRange(int(index.offset_bytes[s]), length)
            for s, length in missing.items()
            if index.offset_bytes[s] >= 0
        }
        found: dict[int, bytes] = {}
        merged = coalesce(list(places.values()), self.gap_bytes)
        self.ranges += len(merged)
        self.bytes_read += sum(part.length_bytes for part in merged)
        blocks = [
            block for batch in _batches(merged) for block in zip(batch, self._source.read_ranges(batch), strict=True)
        ]
        by_offset = sorted(places.items(), key=lambda item: item[1])
        position = 0
        for sample, place in by_offset:
            while blocks[position][0].end_bytes < place.end_bytes:
                position += 1
            block_range, data = blocks[position]
            start = place.offset_bytes - block_range.offset_bytes
            payload = data[start : start + place.length_bytes]
            if len(payload) == place.length_bytes:
                found[sample] = payload
                if place.length_bytes == index.size_bytes[sample]:
                    self._keep(sample, payload)
        return found

    def _sliced(self, lengths: Mapping[int, int]) -> dict[int, bytes]:
        """From the whole file, read once."""
        if self._whole is None:
            (self._whole,) = self._source.read_ranges([ByteRange(0, self._source.size_bytes)])
            self.ranges += 1
            self.bytes_read += self._source.size_bytes
        places = {s: (int(self._index.offset_bytes[s]), length) for s, length in lengths.items()}
        found = {s: self._whole[at : at + size] for s, (at, size) in places.items() if at >= 0}
        return {s: payload for s, payload in found.items() if len(payload) == places[s][1]}

    def _keep(self, sample: int, payload: bytes) -> None:
        self._kept[sample] = payload
        self._kept_bytes += len(payload)
        while self._kept_bytes > self._max_kept_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)


def _batches(ranges: list[ByteRange]) -> list[list[ByteRange]]:
    """The ranges in groups of at most 16 MiB, so that one answer stays small; a larger range stands alone."""
    batches: list[list[ByteRange]] = []
    room_bytes = 0
    for wanted in ranges:
        if not batches or wanted.length_bytes > room_bytes:
            batches.append([])
            room_bytes = _PER_REQUEST_BYTES
        batches[-1].append(wanted)
        room_bytes -= wanted.length_bytes
    return batches
