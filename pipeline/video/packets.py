"""From demuxed packets to a sample table: the columns, the payloads that fit, and what the times are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from av.packet import Packet
from av.video.stream import VideoStream
from numpy.typing import NDArray

from pipeline.errors import PermanentError, Reason
from pipeline.video.foreign import is_foreign
from pipeline.video.index import SampleIndex, StreamFacts

_MISSING_END_S = 2.0
_MISSING_END_SHARE = 0.1
_MAX_TICKS = 2**53
"""Times beyond are nonsense, and none: sums of what is left cannot leave 64 bits."""
_MAX_STEP_TICKS = 2**40


@dataclass(frozen=True, slots=True)
class Row:
    """One packet: what its container says."""

    size_bytes: int
    dts: int | None
    pts: int | None
    is_key: bool
    is_shown: bool
    duration: int
    is_foreign: bool = False


class PacketTable:
    """Collects the packets' columns, and as many payloads as fit: all, then keys, then every other key.

    Where samples have start codes, those of another codec than `start_coded` are told apart and not kept.
    """

    def __init__(self, budget_bytes: int, start_coded: str | None = None) -> None:
        self._start_coded = start_coded
        self.rows: list[Row] = []
        self.payloads: dict[int, bytes] = {}
        self._budget_bytes = budget_bytes
        self._kept_bytes = 0
        self._keys_only = False
        self._key_step, self._keys = 1, 0

    def add(self, packet: Packet[VideoStream]) -> None:
        number = len(self.rows)
        is_key = packet.is_keyframe
        foreign = self._start_coded is not None and is_foreign(self._start_coded, memoryview(packet))
        duration = min(max(0, packet.duration or 0), _MAX_STEP_TICKS)
        times = _sane(packet.dts), _sane(packet.pts)
        self.rows.append(Row(packet.size, *times, is_key, not packet.is_discard, duration, foreign))
        if foreign:
            return
        self._keys += is_key
        if is_key and self._keys % self._key_step:
            return
        if is_key or not self._keys_only:
            self.payloads[number] = bytes(packet)
            self._kept_bytes += packet.size
            self._thin()

    def _thin(self) -> None:
        while self._kept_bytes > self._budget_bytes and len(self.payloads) > 1:
            if not self._keys_only:
                self._keys_only = True
                dropped = [number for number in self.payloads if not self.rows[number].is_key]
            else:
                self._key_step *= 2
                dropped = list(self.payloads)[1::2]
            for number in dropped:
                self._kept_bytes -= len(self.payloads.pop(number))


def _sane(ticks: int | None) -> int | None:
    return ticks if ticks is not None and abs(ticks) <= _MAX_TICKS else None


@dataclass(frozen=True, slots=True)
class Claims:
    """What a file says about itself: its duration, 0 where it says nothing; by how many bytes it is shorter than it
    says. The duration is believed up to `max_duration_s`."""

    duration_s: float
    missing_bytes: int
    max_duration_s: float


def packet_index(facts: StreamFacts, table: PacketTable, claims: Claims, warnings: Sequence[str]) -> SampleIndex:
    """The sample table. Raises NO_FRAMES, or TRUNCATED where bytes are missing, for a table without rows."""
    rows, warnings = table.rows, list(warnings)
    if not rows and claims.missing_bytes:
        raise PermanentError(Reason.TRUNCATED, f"the file ends {claims.missing_bytes} bytes early, before any picture")
    if not rows:
        raise PermanentError(Reason.NO_FRAMES, "the video stream has no samples")
    dts = _filled(rows)
    pts = np.array([d if row.pts is None else row.pts for d, row in zip(dts, rows, strict=True)], np.int64)
    is_shown = np.array([row.is_shown for row in rows], bool)
    if not is_shown.any():
        is_shown[:] = True
    start_pts, last = int(pts[is_shown].min()), int(np.where(is_shown, pts, np.iinfo(np.int64).min).argmax())
    end_pts = int(pts[last]) + (rows[last].duration or _usual_step(pts))
    declared_end = start_pts + round(min(claims.duration_s, claims.max_duration_s) / facts.time_base)
    missing_s = float((declared_end - end_pts) * facts.time_base)
    tolerated_s = 0.1 if claims.missing_bytes else max(_MISSING_END_S, _MISSING_END_SHARE * claims.duration_s)
    missing_end = 0
    if missing_s > tolerated_s:
        warnings.append(f"truncated: the pictures end {missing_s:.1f} s before the declared end")
        missing_end, end_pts = declared_end - end_pts, declared_end
    elif claims.missing_bytes:
        warnings.append(f"truncated: the file ends {claims.missing_bytes} bytes before its declared end")
    if all(row.pts is None and row.dts is None for row in rows):
        warnings.append("timestamps estimated: the file has none")
    foreign = np.array([row.is_foreign for row in rows], bool)
    if foreign.all():
        raise PermanentError(Reason.CORRUPT, f"no picture is coded in {facts.codec}, as the file says")
    if foreign.any():
        warnings.append(f"another codec: {foreign.sum()} of {len(rows)} pictures are not {facts.codec}: not looked at")
    is_readable = np.zeros(len(pts), bool)
    is_readable[list(table.payloads)] = True
    return SampleIndex(
        facts=facts,
        offset_bytes=np.full(len(pts), -1, np.int64),
        size_bytes=np.array([row.size_bytes for row in rows], np.int64),
        dts=dts,
        pts=pts,
        is_key=np.array([row.is_key for row in rows], bool),
        is_shown=is_shown,
        start_pts=start_pts,
        end_pts=end_pts,
        is_readable=is_readable,
        warnings=tuple(warnings),
        payloads=table.payloads,
        missing_end=missing_end,
        is_foreign=foreign,
    )


def _filled(rows: list[Row]) -> NDArray[np.int64]:
    """The decoding times, with missing ones counted on from their neighbours."""
    first = next((number for number, row in enumerate(rows) if row.dts is not None), None)
    following = 0
    if first is not None:
        following = (rows[first].dts or 0) - sum(max(1, row.duration) for row in rows[:first])
    filled = []
    for row in rows:
        filled.append(following if row.dts is None else row.dts)
        following = filled[-1] + max(1, row.duration)
    return np.array(filled, np.int64)


def _usual_step(pts: NDArray[np.int64]) -> int:
    return max(1, int(np.median(np.diff(np.sort(pts))))) if len(pts) > 1 else 1
