"""Videos whose index is legal by its form and holds too much, or numbers that arithmetic of 64 bits cannot bear."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from tests.hostile.making import (
    STBL,
    TRACK,
    box,
    boxes,
    element,
    matroska,
    matroska_track,
    place,
    replaced,
    without_box,
)

Change = Callable[[bytes], bytes]


def edited(rows: Sequence[tuple[int, int]]) -> Change:
    """With an edit list of these lengths and starts, of 64 bits."""
    table = b"".join(struct.pack(">QqhH", length, start, 1, 0) for length, start in rows)
    elst = box(b"elst", struct.pack(">II", 1 << 24, len(rows)), table)

    def change(data: bytes) -> bytes:
        track = without_box(data[slice(*place(data, *TRACK))], b"edts")
        return replaced(data, track + box(b"edts", elst), *TRACK)

    return change


def more_boxes(count: int, *path: bytes) -> Change:
    """With so many empty boxes behind what the box at `path` holds."""
    return lambda data: replaced(data, data[slice(*place(data, *path))] + box(b"free") * count, *path)


def boxes_before_index(count: int) -> Change:
    """With so many empty boxes between the pictures and the index."""

    def change(data: bytes) -> bytes:
        at = next(start for kind, start, _ in boxes(data) if kind == b"moov")
        return data[:at] + box(b"free") * count + data[at:]

    return change


def many_chapters(data: bytes) -> bytes:
    """Whose track names two million chapter tracks."""
    track = data[slice(*place(data, *TRACK))]
    return replaced(data, track + box(b"tref", box(b"chap", bytes(range(2, 10)) * 1_000_000)), *TRACK)


def far_samples(data: bytes) -> bytes:
    """Whose samples lie so far out that their ends leave 64 bits."""
    stbl = data[slice(*place(data, *STBL))]
    offsets = b"".join(struct.pack(">Q", 2**63 - 10) for _ in range(30))
    far = box(b"co64", struct.pack(">II", 0, 30), offsets)
    one_each = box(b"stsc", struct.pack(">5I", 0, 1, 1, 1, 1))
    return replaced(data, without_box(without_box(stbl, b"stco"), b"stsc") + far + one_each, *STBL)


def empty_chunks(data: bytes) -> bytes:
    """Whose chunks hold no samples."""
    return replaced(data, struct.pack(">5I", 0, 1, 0, 0, 0), *STBL, b"stsc")


def quickest_clock(data: bytes) -> bytes:
    """With the most ticks a second that 32 bits can say."""
    body = data[slice(*place(data, *TRACK, b"mdia", b"mdhd"))]
    return replaced(data, body[:12] + b"\xff" * 4 + body[16:], *TRACK, b"mdia", b"mdhd")


def two_descriptions_of_many(data: bytes) -> bytes:
    """With two sample descriptions, which only FFmpeg reads, and a claim of a hundred million samples."""
    described = data[slice(*place(data, *STBL, b"stsd"))]
    data = replaced(data, struct.pack(">II", 0, 2) + described[8:] * 2, *STBL, b"stsd")
    return replaced(data, struct.pack(">III", 0, 1, 100_000_000), *STBL, b"stsz")


def quick_matroska(data: bytes) -> bytes:
    """Matroska whose ticks are said to be nanoseconds, not milliseconds: all pictures within a microsecond."""
    at = data.index(b"\x2a\xd7\xb1\x83") + 4
    return data[:at] + b"\0\0\1" + data[at + 3 :]


def many_tags(count: int) -> Change:
    """Matroska of unknown length with so many names in its tags."""
    names = (element(b"\x67\xc8", element(b"\x45\xa3", b"%08d" % n), element(b"\x44\x87", b"x")) for n in range(count))
    tags = element(b"\x12\x54\xc3\x67", element(b"\x73\x73", element(b"\x63\xc0"), *names))

    def change(data: bytes) -> bytes:
        segment, cluster = data.index(b"\x18\x53\x80\x67") + 4, data.index(b"\x1f\x43\xb6\x75")
        return data[:segment] + b"\x01" + b"\xff" * 7 + data[segment + 8 : cluster] + tags + data[cluster:]

    return change


def long_script(count: int) -> Change:
    """FLV with so many names in its metadata."""
    names = b"".join(b"\0\x08%08d\0" % n + struct.pack(">d", 1.0) for n in range(count))
    body = b"\x02\0\x0aonMetaData\x08" + struct.pack(">I", count) + names + b"\0\0\x09"
    tag = bytes([18]) + len(body).to_bytes(3, "big") + bytes(7) + body + struct.pack(">I", 11 + len(body))
    return lambda data: data[:13] + tag + data[13:]


def ten_placed(data: bytes) -> bytes:
    """Whose one chunk holds ten samples of many."""
    (first,) = struct.unpack_from(">I", data, place(data, *STBL, b"stco")[0] + 8)
    data = replaced(data, struct.pack(">III", 0, 1, first), *STBL, b"stco")
    return replaced(data, struct.pack(">5I", 0, 1, 1, 10, 1), *STBL, b"stsc")


def far_cluster(ticks: int) -> bytes:
    """Matroska whose one cluster begins at such a tick, of nanoseconds, and holds nothing that decodes."""
    info = element(b"\x15\x49\xa9\x66", element(b"\x2a\xd7\xb1", b"\1"))
    blocks = (element(b"\xa3", b"\x81", struct.pack(">h", n), b"\x80", bytes(50)) for n in range(3))
    cluster = element(b"\x1f\x43\xb6\x75", element(b"\xe7", ticks.to_bytes(8, "big")), *blocks)
    return matroska(info, element(b"\x16\x54\xae\x6b", matroska_track(1)), cluster)
