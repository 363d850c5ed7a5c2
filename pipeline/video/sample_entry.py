"""A sample description of an MP4 video track: which codec, its extradata, the picture's size and pixel aspect."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

from pipeline.errors import PermanentError, Reason
from pipeline.video.boxes import UnreadableMp4Error, children

_CODEC_OF_ENTRY = {
    **dict.fromkeys(("avc1", "avc3", "dva1", "dvav"), "h264"),
    **dict.fromkeys(("hvc1", "hev1", "dvh1", "dvhe"), "hevc"),
    **dict.fromkeys(("apch", "apcn", "apcs", "apco", "ap4h", "ap4x"), "prores"),
    **dict.fromkeys(("jpeg", "mjpa", "mjpb"), "mjpeg"),
    **dict.fromkeys(("s263", "h263"), "h263"),
    **dict.fromkeys(("dvc ", "dvcp", "dvpp", "dv5n", "dv5p"), "dvvideo"),
    "av01": "av1",
    "vp08": "vp8",
    "vp09": "vp9",
    "m2v1": "mpeg2video",
}
_CODEC_OF_OBJECT_TYPE = {
    0x20: "mpeg4",
    0x21: "h264",
    **dict.fromkeys(range(0x60, 0x66), "mpeg2video"),
    0x6A: "mpeg1video",
    0x6C: "mjpeg",
}
_VISUAL_ENTRY_BYTES = 78
_EXTRADATA_BOXES = {b"avcC", b"hvcC", b"av1C"}


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """`sample_aspect` is None where the entry does not say."""

    codec: str
    extradata: bytes | None
    width_px: int
    height_px: int
    sample_aspect: Fraction | None


def sample_entry(stsd: memoryview) -> SampleEntry:
    """The one entry of `stsd`; several raise UnreadableMp4Error, unknown ones UNSUPPORTED_CODEC."""
    entries = list(children(stsd[8:]))
    if len(entries) != 1:
        raise UnreadableMp4Error(f"{len(entries)} sample descriptions")
    kind, body = entries[0]
    name = kind.decode("ascii", "backslashreplace")
    width_px, height_px = struct.unpack_from(">2H", body, 24)
    boxes = dict(children(body[_VISUAL_ENTRY_BYTES:]))
    extradata = next((bytes(boxes[box]) for box in _EXTRADATA_BOXES & boxes.keys()), None)
    codec = _CODEC_OF_ENTRY.get(name)
    if name == "mp4v" and b"esds" in boxes:
        codec, extradata = _elementary_stream(boxes[b"esds"])
    if codec is None:
        what = "encrypted" if name == "encv" else f"coded as {name!r}"
        raise PermanentError(Reason.UNSUPPORTED_CODEC, f"the video is {what}, which is not accepted")
    aspect = None
    if len(pasp := boxes.get(b"pasp", memoryview(b""))) >= 8:
        horizontal, vertical = struct.unpack_from(">2I", pasp)
        aspect = Fraction(horizontal, vertical) if horizontal and vertical else None
    return SampleEntry(codec, extradata, width_px, height_px, aspect)


def _elementary_stream(esds: memoryview) -> tuple[str | None, bytes | None]:
    """Codec and extradata of an MPEG-4 elementary stream descriptor (ISO/IEC 14496-1, 7.2.6)."""
    codec, at = None, 4
    while at + 2 <= len(esds):
        tag, length, at = _descriptor(esds, at)
        if tag == 0x03:  # ES_Descriptor: id, flags and what the flags announce; then its parts
            flags = esds[at + 2]
            at += 3 + 2 * bool(flags & 0x80) + 2 * bool(flags & 0x20)
            at += 1 + esds[at] if flags & 0x40 else 0
        elif tag == 0x04:  # DecoderConfigDescriptor: 13 bytes, then its parts
            codec = _CODEC_OF_OBJECT_TYPE.get(esds[at])
            at += 13
        elif tag == 0x05:  # DecoderSpecificInfo
            return codec, bytes(esds[at : at + length]) or None
        else:
            at += length
    return codec, None


def _descriptor(data: memoryview, at: int) -> tuple[int, int, int]:
    """Tag, length and the place of the body of the descriptor at `at`."""
    tag, length = data[at], 0
    for position in range(at + 1, min(at + 5, len(data))):
        length = length << 7 | data[position] & 0x7F
        at = position
        if not data[position] & 0x80:
            break
    return tag, length, at + 1
