"""The sample table by demuxing: for Matroska, MPEG-TS, AVI, FLV and the MP4s that `mp4` does not read.

FFmpeg's demuxer reads through a file-like object over the source's ranges, told which format it is: it never
sees a name or URL and may open nothing else. Samples are not contiguous in these files, so the packets
themselves are kept, within a budget.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from fractions import Fraction
from typing import NoReturn

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from pipeline.errors import PermanentError, Reason
from pipeline.video.index import CODECS, SampleIndex, StreamFacts
from pipeline.video.limits import Limits
from pipeline.video.source import ByteRange, Source

_BLOCK_BYTES = 512 * 1024
_CACHED_BLOCKS = 8
_ROTATION_PROBES = 24  # packets; reordering delays the first frame by up to 16
_MISSING_END_S = 2.0
_MISSING_END_SHARE = 0.1


class BlockFile(io.RawIOBase):
    """A seekable, read-only file over a source, read in blocks of 512 KiB of which the last eight are kept."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left_bytes = max(0, self._source.size_bytes - self._at)
        size = left_bytes if size < 0 else min(size, left_bytes)
        number, skip = divmod(self._at, _BLOCK_BYTES)
        part = self._block(number)[skip : skip + size] if size else b""
        self._at += len(part)
        return part

    def _block(self, number: int) -> bytes:
        block = self._blocks.pop(number, None)
        if block is None:
            (block,) = self._source.read_ranges([ByteRange(number * _BLOCK_BYTES, _BLOCK_BYTES)])
        self._blocks[number] = block
        if len(self._blocks) > _CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return block


class PacketTable:
    """Collects the packets' columns, and as many payloads as fit: all, then keys, then every other key."""

    def __init__(self, budget_bytes: int) -> None:
        self.rows: list[tuple[int, int | None, int | None, bool, bool, int]] = []
        self.payloads: dict[int, bytes] = {}
        self._budget_bytes = budget_bytes
        self._kept_bytes = 0
        self._keys_only = False
        self._key_step, self._keys = 1, 0

    def add(self, packet: Packet[VideoStream]) -> None:
        number = len(self.rows)
        self.rows.append(
            (packet.size, packet.dts, packet.pts, packet.is_keyframe, not packet.is_discard, packet.duration or 0)
        )
        self._keys += packet.is_keyframe
        if packet.is_keyframe and self._keys % self._key_step:
            return
        if packet.is_keyframe or not self._keys_only:
            self.payloads[number] = bytes(packet)
            self._kept_bytes += packet.size
            self._thin()

    def _thin(self) -> None:
        while self._kept_bytes > self._budget_bytes and len(self.payloads) > 1:
            if not self._keys_only:
                self._keys_only = True
                dropped = [number for number in self.payloads if not self.rows[number][3]]
            else:
                self._key_step *= 2
                dropped = list(self.payloads)[1::2]
            for number in dropped:
                self._kept_bytes -= len(self.payloads.pop(number))


def demuxed_index(source: Source, container_format: str, limits: Limits) -> SampleIndex:
    """The sample table of the first real video stream (cover art is none).

    Raises PermanentError: NO_VIDEO_STREAM, UNSUPPORTED_CODEC, NO_FRAMES, TRUNCATED, CORRUPT, TOO_LARGE.
    """
    try:
        with av.open(
            BlockFile(source),
            "r",
            format=container_format,
            options={"protocol_whitelist": "none"},
            io_open=_refuse_to_open,
        ) as container:
            return _read(container, container_format, limits)
    except (av.FFmpegError, UnicodeDecodeError) as error:
        raise PermanentError(Reason.CORRUPT, f"the {container_format} file cannot be read: {error}") from error


def _refuse_to_open(url: str, *_: object) -> NoReturn:
    raise PermanentError(Reason.CORRUPT, f"the file refers to another file, {url[:80]!r}")


def _read(container: InputContainer, container_format: str, limits: Limits) -> SampleIndex:
    stream = _chosen_stream(container)
    table = PacketTable(limits.retained_bytes)
    warnings: list[str] = []
    rotation_deg: int | None = None
    read_bytes = probes = 0
    try:
        for packet in container.demux(stream):
            if packet.size == 0:
                continue
            if rotation_deg is None and probes < _ROTATION_PROBES:
                rotation_deg, probes = _rotation_deg(packet), probes + 1
            table.add(packet)
            read_bytes += packet.size
            if len(table.rows) > limits.max_samples:
                raise PermanentError(Reason.TOO_LARGE, f"more than {limits.max_samples} samples")
            if read_bytes > limits.demux_bytes:
                warnings.append(f"only the first {limits.demux_bytes} bytes of pictures were read")
                break
    except av.FFmpegError as error:
        warnings.append(f"damaged: reading stopped after {len(table.rows)} samples: {type(error).__name__}")
    facts = StreamFacts(
        container=container_format,
        codec=stream.codec_context.name,
        extradata=stream.codec_context.extradata,
        time_base=stream.time_base or Fraction(1, 90000),
        width_px=stream.codec_context.width,
        height_px=stream.codec_context.height,
        sample_aspect=stream.sample_aspect_ratio or Fraction(1),
        rotation_deg=rotation_deg or 0,
    )
    return _index(facts, table, _declared_duration_s(container, stream), warnings)


def _chosen_stream(container: InputContainer) -> VideoStream:
    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    if not streams:
        raise PermanentError(Reason.NO_VIDEO_STREAM, "the file has no video stream")
    known = [stream for stream in streams if stream.codec_context is not None]
    if not known:
        raise PermanentError(Reason.UNSUPPORTED_CODEC, "the video's codec is unknown")
    stream = known[0]
    if stream.codec_context.name not in CODECS | {"libdav1d", "libvpx-vp9"}:
        raise PermanentError(Reason.UNSUPPORTED_CODEC, f"the codec {stream.codec_context.name} is not accepted")
    return stream


def _rotation_deg(packet: Packet[VideoStream]) -> int | None:
    """Clockwise; the container's matrix arrives as the frame's side data, whose angle is counter-clockwise."""
    try:
        frames = packet.decode()
    except av.FFmpegError:
        return None
    return -frames[0].rotation % 360 // 90 * 90 if frames else None


def _declared_duration_s(container: InputContainer, stream: VideoStream) -> float:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / av.time_base


def _index(facts: StreamFacts, table: PacketTable, declared_s: float, warnings: list[str]) -> SampleIndex:
    if not table.rows:
        raise PermanentError(Reason.NO_FRAMES, "the video stream has no samples")
    sizes, raw_dts, raw_pts, keys, shown, durations = zip(*table.rows, strict=True)
    dts = _filled(raw_dts, durations)
    pts = np.array([d if p is None else p for d, p in zip(dts, raw_pts, strict=True)], np.int64)
    is_shown = np.array(shown, bool)
    if not is_shown.any():
        is_shown[:] = True
    start_pts, last = int(pts[is_shown].min()), int(np.where(is_shown, pts, np.iinfo(np.int64).min).argmax())
    end_pts = int(pts[last]) + (durations[last] or _usual_step(pts))
    declared_end = start_pts + round(declared_s / facts.time_base)
    missing_s = float((declared_end - end_pts) * facts.time_base)
    if missing_s > max(_MISSING_END_S, _MISSING_END_SHARE * declared_s):
        warnings.append(f"truncated: the pictures end {missing_s:.1f} s before the declared end")
        end_pts = declared_end
    is_readable = np.zeros(len(pts), bool)
    is_readable[list(table.payloads)] = True
    return SampleIndex(
        facts=facts,
        offset_bytes=np.full(len(pts), -1, np.int64),
        size_bytes=np.array(sizes, np.int64),
        dts=dts,
        pts=pts,
        is_key=np.array(keys, bool),
        is_shown=is_shown,
        start_pts=start_pts,
        end_pts=end_pts,
        is_readable=is_readable,
        warnings=tuple(warnings),
        payloads=table.payloads,
    )


def _filled(times: tuple[int | None, ...], durations: tuple[int, ...]) -> np.typing.NDArray[np.int64]:
    """The times, with the missing ones counted on from their neighbours."""
    filled, following = [], 0
    for time, duration in zip(times, durations, strict=True):
        filled.append(following if time is None else time)
        following = filled[-1] + max(1, duration)
    return np.array(filled, np.int64)


def _usual_step(pts: np.typing.NDArray[np.int64]) -> int:
    return max(1, int(np.median(np.diff(np.sort(pts))))) if len(pts) > 1 else 1
