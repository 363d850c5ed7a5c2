"""The sample table by demuxing: for Matroska, MPEG-TS, AVI, FLV and the MP4s that `mp4` does not read.

FFmpeg's demuxer reads through a file-like object over the source's ranges, told which format it is: it never
sees a name or URL and may open nothing else. Samples are not contiguous in these files, so the packets
themselves are kept, within a budget.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from pipeline.errors import PermanentError, Reason
from pipeline.video.decoders import codec_of
from pipeline.video.index import CODECS, SampleIndex, StreamFacts
from pipeline.video.limits import Limits
from pipeline.video.metadata import NameCounter
from pipeline.video.packets import Claims, PacketTable, packet_index
from pipeline.video.source import ByteRange, Source

_BLOCK_BYTES = 512 * 1024
_CACHED_BLOCKS = 8
_LEAST_CHARGED_BYTES = 4096  # of `BlockFile`'s patience: a tiny read costs as much time
_ROTATION_PROBES = 24  # packets; reordering delays the first frame by up to 16
_DECODERS = CODECS | {"libdav1d", "libvpx", "libvpx-vp9", "flv", "msmpeg4"}
_OUT_OF_MEMORY = 12  # ENOMEM
_START_CODED = frozenset(("mpegts", "mpeg"))
_NO_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails


class BlockFile(io.RawIOBase):
    """A seekable, read-only file over a source, read in blocks of 512 KiB of which the last eight are kept.

    It ends early, and says so by `gave_up`, once `idle_bytes` were read since the last `found`: else a demuxer
    would search through gigabytes of nothing.
    """

    def __init__(self, source: Source, idle_bytes: int, names: NameCounter | None = None) -> None:
        self._names = names
        self._source = source
        self._idle_bytes = self._left_bytes = idle_bytes
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def found(self) -> None:
        """A picture was found: reading on is worth while."""
        self._names = None
        self._left_bytes = self._idle_bytes

    @property
    def gave_up(self) -> bool:
        return self._left_bytes <= 0 or self.has_too_many_names

    @property
    def has_too_many_names(self) -> bool:
        return self._names is not None and self._names.is_exceeded

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left_bytes = 0 if self.gave_up else max(0, self._source.size_bytes - self._at)
        size = left_bytes if size < 0 else min(size, left_bytes)
        number, skip = divmod(self._at, _BLOCK_BYTES)
        part = self._block(number)[skip : skip + size] if size else b""
        self._at += len(part)
        if self._names is not None:
            self._names.saw(part)
        self._left_bytes -= max(len(part), _LEAST_CHARGED_BYTES)
        return part

    def _block(self, number: int) -> bytes:
        block = self._blocks.pop(number, None)
        if block is None:
            (block,) = self._source.read_ranges([ByteRange(number * _BLOCK_BYTES, _BLOCK_BYTES)])
        self._blocks[number] = block
        if len(self._blocks) > _CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return block


def demuxed_index(source: Source, container_format: str, limits: Limits, claims: Claims) -> SampleIndex:
    """The sample table of the default video stream, else of the first (cover art is none).

    `claims` are what the file's head says, to be held against what is found.

    Raises PermanentError: NO_VIDEO_STREAM, UNSUPPORTED_CODEC, NO_FRAMES, TRUNCATED, CORRUPT, TOO_LARGE.
    """
    file = BlockFile(source, limits.idle_read_bytes, NameCounter(container_format, limits))
    try:
        with av.open(
            file,
            "r",
            format=container_format,
            options={
                "protocol_whitelist": "none",
                "format_whitelist": container_format,
                "codec_whitelist": ",".join(sorted(_DECODERS)),
                "max_pixels": str(limits.max_pixels),
            },
            io_open=_refuse_to_open,
        ) as container:
            _refuse_many_names(file, limits)
            return _read(container, file, container_format, limits, claims)
    except (av.FFmpegError, UnicodeDecodeError, MemoryError) as error:
        _refuse_many_names(file, limits)
        if isinstance(error, MemoryError) or getattr(error, "errno", 0) == _OUT_OF_MEMORY:
            detail = f"reading the {container_format} file needs more memory than allowed"
            raise PermanentError(Reason.TOO_LARGE, detail) from error
        if isinstance(error, av.error.EOFError) and not claims.missing_bytes:
            detail = f"what the {container_format} file says of its streams is damaged, or goes on after its end"
            raise PermanentError(Reason.CORRUPT, detail) from error
        reason = Reason.TRUNCATED if claims.missing_bytes else Reason.CORRUPT
        raise PermanentError(reason, f"the {container_format} file cannot be read: {_words(error)}") from error


def _refuse_many_names(file: BlockFile, limits: Limits) -> None:
    if file.has_too_many_names:
        raise PermanentError(Reason.TOO_LARGE, f"the metadata has more than {limits.max_names} entries")


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or type(error).__name__)


def _refuse_to_open(url: str, *_: object) -> NoReturn:
    raise PermanentError(Reason.UNSUPPORTED_CODEC, f"the file refers to another file, {url[:80]!r}")


def _read(
    container: InputContainer, file: BlockFile, container_format: str, limits: Limits, claims: Claims
) -> SampleIndex:
    stream, others = _chosen_stream(container, limits)
    # `_rotation_deg` decodes with this context: one thread, and no more pixels than the container may claim
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {"max_pixels": str(limits.max_pixels)}
    start_coded = codec_of(stream.codec_context.name) if container_format in _START_CODED else None
    table = PacketTable(limits.retained_bytes, start_coded)
    warnings = [f"{others} more video stream(s) were not looked at"] if others else []
    rotation_deg = _collect(container, stream, file, table, limits, warnings)
    context = stream.codec_context  # by now it has seen pictures, so it knows a size that the container kept back
    facts = StreamFacts(
        container=container_format,
        codec=codec_of(context.name),
        extradata=context.extradata,
        time_base=stream.time_base or Fraction(1, 90000),
        width_px=context.width,
        height_px=context.height,
        sample_aspect=stream.sample_aspect_ratio or Fraction(1),
        rotation_deg=rotation_deg,
    )
    if not claims.duration_s:
        claims = replace(claims, duration_s=_declared_duration_s(container, stream))
    return replace(packet_index(facts, table, claims, warnings), streams=_described(container))


def _described(container: InputContainer) -> tuple[str, ...]:
    """Kind and codec of every stream."""
    contexts = [(stream.type, stream.codec_context) for stream in container.streams]
    return tuple(f"{kind} {context.name if context is not None else 'unknown'}" for kind, context in contexts)


def _collect(
    container: InputContainer,
    stream: VideoStream,
    file: BlockFile,
    table: PacketTable,
    limits: Limits,
    warnings: list[str],
) -> int:
    """Fills the table; the rotation, clockwise."""
    rotation_deg: int | None = None
    read_bytes = packets = 0
    try:
        for packet in container.demux(stream):
            packets += 1
            if packets > limits.max_samples:
                raise PermanentError(Reason.TOO_LARGE, f"more than {limits.max_samples} samples")
            if packet.size == 0:
                continue
            file.found()
            if rotation_deg is None and len(table.rows) < _ROTATION_PROBES:
                rotation_deg = _rotation_deg(packet)
            table.add(packet)
            read_bytes += packet.size
            if read_bytes > limits.demux_bytes:
                warnings.append(f"only the first {limits.demux_bytes} bytes of pictures were read")
                break
    except av.FFmpegError as error:
        warnings.append(f"damaged: reading stopped after {len(table.rows)} samples: {_words(error)}")
    if file.gave_up:
        warnings.append(f"damaged: {limits.idle_read_bytes} bytes without a picture, reading stopped")
    return rotation_deg or 0


def _chosen_stream(container: InputContainer, limits: Limits) -> tuple[VideoStream, int]:
    """The video stream that players take, and how many others there are."""
    if len(container.streams) > limits.max_streams:
        detail = f"{len(container.streams)} streams exceed {limits.max_streams}"
        raise PermanentError(Reason.TOO_LARGE, detail)
    streams = [s for s in container.streams.video if not s.disposition & _NO_VIDEO]
    if not streams:
        raise PermanentError(Reason.NO_VIDEO_STREAM, "the file has no video stream")
    stream = next((s for s in streams if s.disposition & Disposition.default), streams[0])
    if stream.codec_context is None:
        raise PermanentError(Reason.UNSUPPORTED_CODEC, "the video's codec is unknown")
    if codec_of(stream.codec_context.name) not in CODECS:
        raise PermanentError(Reason.UNSUPPORTED_CODEC, f"the codec {stream.codec_context.name} is not accepted")
    return stream, len(streams) - 1


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
