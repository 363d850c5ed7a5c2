"""How odd files are made: healthy clips, cut, patched, padded and stuffed."""

from __future__ import annotations

import functools
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import av
import cv2

from tests import clips
from tests.hostile.making import (
    STBL,
    TRACK,
    box,
    boxes,
    changing_size,
    element,
    encode,
    matroska,
    matroska_track,
    number,
    patched,
    pictures,
    place,
    remuxed,
    replaced,
    without_box,
)

FRAMES = 180


def plain(path: Path, **container_options: str) -> bytes:
    """A healthy clip of 180 frames with a key every 10, as bytes; it is left at `path` too."""
    data = _plain(path.suffix, tuple(sorted(container_options.items())))
    path.write_bytes(data)
    return data


@functools.cache
def _plain(suffix: str, container_options: tuple[tuple[str, str], ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"plain{suffix}"
        options = {"g": "10", "bf": "2", "crf": "28"}
        return encode(path, pictures(FRAMES), options=options, container_options=dict(container_options)).read_bytes()


def written(change: Callable[[bytes], bytes], **container_options: str) -> Callable[[Path], object]:
    """Makes a healthy clip, then changes its bytes."""
    return lambda path: path.write_bytes(change(plain(path, **container_options)))


def holding(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def first_key_missing(path: Path) -> None:
    whole = path.with_name("whole" + path.suffix)
    encode(whole, pictures(60), options={"g": "15", "bf": "0"})
    remuxed(whole, path, without=lambda position: position == 0)


def still(suffix: str) -> bytes:
    return bytes(cv2.imencode(suffix, next(pictures(1)))[1])


def gif(path: Path) -> None:
    encode(path, pictures(3, 64, 48), "gif", pix_fmt="rgb8")


def with_cover(path: Path) -> None:
    """Sound, with a picture in iTunes' metadata."""
    clips.write_audio_only(path)
    cover = box(b"data", struct.pack(">II", 13, 0), still(".jpg"))
    handler = box(b"hdlr", bytes(8), b"mdirappl", bytes(9))
    meta = box(b"meta", bytes(4), handler, box(b"ilst", box(b"covr", cover)))
    data = path.read_bytes()
    start, end = place(data, b"moov")
    path.write_bytes(replaced(data, data[start:end] + box(b"udta", meta), b"moov"))


def with_cover_stream(path: Path) -> None:
    """Sound, with a one-picture video stream that says it is the cover."""
    sound = clips.write_audio_only(path.with_name("sound.m4a"))
    with av.open(str(sound)) as old, av.open(str(path), "w") as new:
        audio = new.add_stream_from_template(old.streams.audio[0])
        new.add_attachment("cover.jpg", "image/jpeg", still(".jpg"))
        for packet in old.demux(old.streams.audio[0]):
            if packet.size:
                packet.stream = audio
                new.mux(packet)


def id3_with_cover() -> bytes:
    picture = b"\x00image/jpeg\x00\x03\x00" + still(".jpg")
    frame = b"APIC" + struct.pack(">I", len(picture)) + b"\0\0" + picture
    size = len(frame)
    sizes = bytes((size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127))
    return b"ID3\x03\x00\x00" + sizes + frame + b"\xff\xfb\x90\x00" + bytes(413)


def shortened(length: float) -> Callable[[bytes], bytes]:
    """Cut after so many bytes, or after such a share of them."""
    return lambda data: data[: length if isinstance(length, int) else int(len(data) * length)]


def cut_in_moov(length: int) -> Callable[[bytes], bytes]:
    return lambda data: data[: place(data, b"moov")[0] + length]


def cut_mdat(share: float) -> Callable[[bytes], bytes]:
    def cut(data: bytes) -> bytes:
        start, end = place(data, b"mdat")
        return data[: start + int((end - start) * share)]

    return cut


def zero_samples(data: bytes) -> bytes:
    for name in (b"stsz", b"stts", b"stsc", b"stco", b"stss", b"ctts"):
        fields = bytes(12) if name == b"stsz" else bytes(8)
        data = replaced(data, fields, *STBL, name)
    return data


def claimed_size(width_px: int, height_px: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        start, _ = place(data, *STBL, b"stsd")
        return patched(data, start + 8 + 8 + 24, ">2H", width_px, height_px)

    return change


def huge_jpegs(path: Path, *, honest: bool) -> None:
    """Motion JPEG whose pictures say they have 16384x16384 pixels; the container may say the same."""
    encode(path, pictures(5, 64, 48), "mjpeg", pix_fmt="yuvj420p")
    data = path.read_bytes()
    frame_header = b"\xff\xc0\x00\x11\x08" + struct.pack(">2H", 48, 64)
    assert frame_header in data
    data = data.replace(frame_header, frame_header[:5] + struct.pack(">2H", 16384, 16384))
    path.write_bytes(claimed_size(16384, 16384)(data) if honest else data)


def many_tracks(count: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        start, end = place(data, b"moov")
        track = next(data[start:end][first:last] for kind, first, last in boxes(data[start:end]) if kind == b"trak")
        return replaced(data, data[start:end] + track * (count - 1), b"moov")

    return change


def many_matroska_tracks(count: int) -> bytes:
    tracks = element(b"\x16\x54\xae\x6b", *(matroska_track(track) for track in range(1, count + 1)))
    return matroska(tracks, element(b"\x1f\x43\xb6\x75", number(b"\xe7", 0)))


def slow_sample_table(total_s: int) -> Callable[[bytes], bytes]:
    """A sample table that spreads its frames over so long a time."""

    def change(data: bytes) -> bytes:
        start, _ = place(data, *STBL, b"stts")
        (timescale,) = struct.unpack_from(">I", data, place(data, *TRACK, b"mdia", b"mdhd")[0] + 12)
        assert struct.unpack_from(">2I", data, start + 4) == (1, FRAMES)
        return patched(data, start + 12, ">I", total_s * timescale // FRAMES)

    return change


def long_header(total_s: int) -> Callable[[bytes], bytes]:
    """Headers that claim so long a time, over a sample table that does not."""

    def change(data: bytes) -> bytes:
        for path in ((b"moov", b"mvhd"), (*TRACK, b"mdia", b"mdhd")):
            start, _ = place(data, *path)
            (timescale,) = struct.unpack_from(">I", data, start + 12)
            data = patched(data, start + 16, ">I", total_s * timescale)
        return data

    return change


def long_matroska(total_s: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = data.index(b"\x44\x89\x88")
        return data[: at + 3] + struct.pack(">d", total_s * 1000) + data[at + 11 :]

    return change


def padded_to(size_bytes: int, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def pad(data: bytes) -> bytes:
        changed = change(data)
        return changed + box(b"free", bytes(size_bytes - len(changed) - 8))

    return pad


def million_samples(data: bytes, *, each_bytes: int = 0) -> bytes:
    """A table that claims a million samples: it lists few, or it says that all have one size."""
    start, _ = place(data, *STBL, b"stsz")
    if each_bytes:
        return replaced(data, struct.pack(">III", 0, each_bytes, 1_000_000), *STBL, b"stsz")
    return patched(data, start + 8, ">I", 1_000_000)


def sparse(path: Path, size_bytes: int) -> None:
    data = plain(path)
    with path.open("wb") as file:
        file.write(without_box(data, b"moov"))
        file.truncate(size_bytes)


def mdat_of_100_gb(data: bytes) -> bytes:
    start, end = place(data, b"mdat")
    body, moov = data[start:end], data[place(data, b"moov")[0] - 8 :]
    return data[: start - 8] + struct.pack(">I4sQ", 1, b"mdat", 100 * 10**9) + body + moov


def endless_fragments(samples_each: int, count: int) -> bytes:
    """An MP4 in fragments that each claim very many samples and hold none: the claim costs no bytes."""
    fragment = box(
        b"moof",
        box(b"mfhd", struct.pack(">II", 0, 1)),
        box(
            b"traf",
            box(b"tfhd", struct.pack(">III", 0x020000 | 0x10, 1, 4)),  # default base, default sample size 4
            box(b"trun", struct.pack(">II", 0, samples_each)),
        ),
    )
    return fragment * count


def endless_fragmented(samples_each: int, count: int) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        head = plain(path, movflags="frag_keyframe+empty_moov+default_base_moof")
        path.write_bytes(head + endless_fragments(samples_each, count))

    return make


def two_sizes(path: Path) -> None:
    changing_size(path, [(320, 180), (640, 360)])


def two_descriptions(path: Path) -> None:
    stream = path.with_suffix(".ts")
    two_sizes(stream)
    remuxed(stream, path)


def coded(codec: str, **more: object) -> Callable[[Path], object]:
    shape = {name: more.pop(name) for name in ("width_px", "height_px", "count") if name in more}
    return lambda path: encode(path, pictures(**{"count": 20, **shape}), codec, **more)  # type: ignore[arg-type]


def huge_in_matroska(path: Path) -> None:
    whole = path.with_suffix(".mov")
    huge_jpegs(whole, honest=False)
    with av.open(str(whole)) as old, av.open(str(path), "w") as new:
        stream = new.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for packet in old.demux(old.streams.video[0]):
            if packet.size:
                packet.stream = stream
                new.mux(packet)


def sparse_matroska(path: Path) -> None:
    plain(path)
    with path.open("r+b") as file:
        file.truncate(15 * 10**9)
