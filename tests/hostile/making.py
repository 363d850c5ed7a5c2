"""Small odd files, made on the spot: encoders for every shape, and surgery on the bytes of containers."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.stream import VideoStream

from pipeline.media import BgrImage
from tests import clips

QUIET: Mapping[str, Mapping[str, str]] = {
    "libx264": {"preset": "veryfast"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libsvtav1": {"preset": "12", "svtav1-params": "lp=1"},
}
"""Quick settings of the encoders, by FFmpeg's names."""


def encode(
    path: Path,
    frames: Iterable[BgrImage],
    codec: str = "libx264",
    *,
    pix_fmt: str = "yuv420p",
    fps: int = 25,
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    first_pts: int = 0,
) -> Path:
    """Frames of one size, in the container of the path's suffix."""
    with av.open(str(path), "w", options=dict(container_options or {})) as container:
        stream: VideoStream | None = None
        for number, image in enumerate(frames):
            if stream is None:
                settings = {**QUIET.get(codec, {}), **(options or {})}
                stream = cast("VideoStream", container.add_stream(codec, rate=fps, options=settings))
                stream.height, stream.width = image.shape[:2]
                stream.pix_fmt = pix_fmt
                stream.codec_context.time_base = Fraction(1, fps)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24").reformat(format=pix_fmt)
            frame.pts = first_pts + number
            container.mux(stream.encode(frame))
        assert stream is not None
        container.mux(stream.encode(None))
    return path


def pictures(count: int = 30, width_px: int = 320, height_px: int = 180, seed: int = 1) -> Iterator[BgrImage]:
    """A drifting scene of any size."""
    image = clips.scene(seed)
    rows = np.arange(height_px) * image.shape[0] // height_px
    columns = np.arange(width_px) * image.shape[1] // width_px
    for number in range(count):
        yield np.ascontiguousarray(np.roll(image, 2 * number, axis=1)[rows][:, columns])


def remuxed(source: Path, target: Path, *, without: Callable[[int], bool] = lambda _: False) -> Path:
    """The same packets in another container, but those of the numbers (from 0) that are left out."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        packets = (packet for packet in old.demux(old.streams.video[0]) if packet.size)
        for number, packet in enumerate(packets):
            if not without(number):
                packet.stream = stream
                new.mux(packet)
    return target


def two_streams(path: Path, *, default: int | None = None) -> Path:
    """Two video streams, 320x180 and 160x90, with `default` marked as the one to play."""
    with av.open(str(path), "w") as container:
        streams = []
        for width_px, height_px in ((320, 180), (160, 90)):
            stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = width_px, height_px, "yuv420p"
            stream.disposition = av.stream.Disposition(0)
            streams.append(stream)
        if default is not None:
            streams[default].disposition = av.stream.Disposition.default
        for number, image in enumerate(pictures(30)):
            for stream in streams:
                frame = av.VideoFrame.from_ndarray(image, format="bgr24")
                frame = frame.reformat(stream.width, stream.height, "yuv420p")
                frame.pts = number
                frame.time_base = Fraction(1, 25)
                container.mux(stream.encode(frame))
        for stream in streams:
            container.mux(stream.encode(None))
    return path


# ISO base media (MP4, MOV)


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def boxes(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of each box in well-formed `data`."""
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, at, at + size
        at += size


def place(data: bytes, *path: bytes) -> tuple[int, int]:
    """Where the body of the first box at `path` begins and ends in `data`."""
    start, end = 0, len(data)
    for kind in path:
        found = next((first, last) for name, first, last in boxes(data[start:end]) if name == kind)
        start, end = start + found[0] + 8, start + found[1]
    return start, end


def without_box(data: bytes, kind: bytes) -> bytes:
    """`data` without its top-level boxes of one kind."""
    return b"".join(data[start:end] for name, start, end in boxes(data) if name != kind)


def replaced(data: bytes, body: bytes, *path: bytes) -> bytes:
    """`data` with the body of the box at `path` replaced, and the sizes of the boxes around it set right."""
    if not path:
        return body
    parts, is_done = [], False
    for kind, start, end in boxes(data):
        if kind == path[0] and not is_done:
            parts.append(box(kind, replaced(data[start + 8 : end], body, *path[1:])))
            is_done = True
        else:
            parts.append(data[start:end])
    assert is_done, path
    return b"".join(parts)


def patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, *values)
    return bytes(changed)


TRACK = (b"moov", b"trak")
STBL = (*TRACK, b"mdia", b"minf", b"stbl")


# Matroska


def element(name: bytes, *parts: bytes) -> bytes:
    """An EBML element with an eight-byte length."""
    body = b"".join(parts)
    return name + (len(body) | 1 << 56).to_bytes(8, "big") + body


def number(name: bytes, value: int) -> bytes:
    return element(name, value.to_bytes(4, "big"))


EBML = element(b"\x1aE\xdf\xa3", element(b"\x42\x82", b"webm"))


def matroska(*segment: bytes) -> bytes:
    """A file of an EBML head and one segment of these elements."""
    return EBML + element(b"\x18\x53\x80\x67", *segment)


def matroska_track(track: int, codec: bytes = b"V_VP8") -> bytes:
    """A TrackEntry for video of 64x48."""
    size = element(b"\xe0", number(b"\xb0", 64), number(b"\xba", 48))
    kind = b"\x01" if codec.startswith(b"V") else b"\x02"
    return element(
        b"\xae", number(b"\xd7", track), number(b"\x73\xc5", track), b"\x83\x81", kind, element(b"\x86", codec), size
    )


# MPEG-TS

_PACKET_BYTES = 188


def with_timestamps(stream: bytes, pts_of: Callable[[int, int], int | None]) -> bytes:
    """A transport stream whose video PES packets carry other PTS: (number, old) -> new, None for no timestamps."""
    data, pes_number = bytearray(stream), 0
    for at in range(0, len(data) - _PACKET_BYTES + 1, _PACKET_BYTES):
        starts, has_field = data[at + 1] & 0x40, data[at + 3] & 0x20
        head = at + 4 + (1 + data[at + 4] if has_field else 0)
        if not starts or data[head : head + 3] != b"\0\0\1" or data[head + 3] & 0xF0 != 0xE0:
            continue
        flags, here = data[head + 7] >> 6, head + 9
        if flags & 2:
            old = _pts(data[here : here + 5])
            new = pts_of(pes_number, old)
            if new is None:
                data[head + 7] &= 0x3F
                data[here : here + data[head + 8]] = b"\xff" * data[head + 8]
            else:
                data[here : here + 5] = _pts_bytes(new, flags)
                if flags == 3:
                    data[here + 5 : here + 10] = _pts_bytes(new, 1)
        pes_number += 1
    return bytes(data)


def _pts(field: bytes | bytearray) -> int:
    return (field[0] >> 1 & 7) << 30 | field[1] << 22 | (field[2] >> 1) << 15 | field[3] << 7 | field[4] >> 1


def _pts_bytes(value: int, prefix: int) -> bytes:
    value %= 1 << 33
    return bytes(
        (
            prefix << 4 | value >> 30 << 1 | 1,
            value >> 22 & 255,
            (value >> 15 & 127) << 1 | 1,
            value >> 7 & 255,
            (value & 127) << 1 | 1,
        )
    )


def changing_size(path: Path, sizes_px: Iterable[tuple[int, int]], each: int = 15) -> Path:
    """A transport stream whose pictures change their size: one H.264 stream after the other under one PID."""
    parts = []
    for position, (width_px, height_px) in enumerate(sizes_px):
        part = path.with_suffix(f".{position}.ts")
        encode(
            part,
            pictures(each, width_px, height_px, seed=position + 1),
            first_pts=position * each,
            options={"g": "15", "bf": "0"},
        )
        parts.append(part.read_bytes())
        part.unlink()
    path.write_bytes(b"".join(itertools.chain(parts)))
    return path
