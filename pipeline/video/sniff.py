"""Which container a file is, from its first bytes, so that only formats on the list are ever opened.

Formats that can name other files (HLS, DASH, concat, image sequences, SDP, subtitles) are text or unknown
here, so FFmpeg never gets to guess them.
"""

from __future__ import annotations

from pipeline.errors import PermanentError, Reason

SNIFF_BYTES = 64 * 1024
MP4 = "mov"
_MP4_FIRST_BOXES = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp"))
_STILL_BRANDS = frozenset((b"heic", b"heix", b"mif1", b"avif", b"crx "))
_TS_SYNC = 0x47
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\x1b")


def container_format(head: bytes) -> str:
    """FFmpeg's demuxer name for the file that begins with `head` (up to SNIFF_BYTES of it).

    Raises PermanentError: EMPTY_FILE, NOT_A_VIDEO, NO_VIDEO_STREAM (formats for sound alone) or
    UNSUPPORTED_CODEC (a video container that is not accepted).
    """
    if not head:
        raise PermanentError(Reason.EMPTY_FILE, "the file has no bytes")
    if name := _accepted(head):
        return name
    if refused := _recognised(head):
        raise refused
    if _is_text(head[:4096]):
        what = "HTML" if b"<html" in head[:1024].lower() or b"<!doctype" in head[:1024].lower() else "text"
        raise PermanentError(Reason.NOT_A_VIDEO, f"the file is {what}, not a video")
    raise PermanentError(Reason.NOT_A_VIDEO, "the file begins like no video format we know")


def _accepted(head: bytes) -> str | None:
    if head[4:8] in _MP4_FIRST_BOXES:
        return None if head[4:8] == b"ftyp" and head[8:12] in _STILL_BRANDS else MP4
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
        return "avi"
    if head.startswith(b"FLV\x01"):
        return "flv"
    if head.startswith(b"\x00\x00\x01\xba"):
        return "mpeg"
    return "mpegts" if _is_transport_stream(head) and not _is_text(head[:4096]) else None


def _is_transport_stream(head: bytes) -> bool:
    """Sync bytes every 188 (or, in M2TS, 192) bytes, from the first or, in a cut stream, a later one."""
    for packet_bytes in (188, 192):
        for first in range(min(packet_bytes, len(head))):
            syncs = head[first::packet_bytes]
            if len(syncs) >= 4 and syncs[:64].count(_TS_SYNC) == len(syncs[:64]):
                return True
    return False


def _recognised(head: bytes) -> PermanentError | None:
    """The answer to formats that are known and not accepted."""
    if head.startswith((b"ID3", b"fLaC", b"OggS")) or head[8:12] == b"WAVE" or head[:2] in {b"\xff\xfb", b"\xff\xf1"}:
        if head.startswith(b"OggS") and b"theora" in head[:256]:
            return PermanentError(Reason.UNSUPPORTED_CODEC, "Ogg Theora is not accepted")
        return PermanentError(Reason.NO_VIDEO_STREAM, "the file is sound without pictures")
    if head.startswith(b"0&\xb2u\x8ef\xcf\x11"):
        return PermanentError(Reason.UNSUPPORTED_CODEC, "the container ASF (WMV) is not accepted")
    is_still = head.startswith((b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM")) or head[8:12] == b"WEBP"
    if is_still or head[8:12] in _STILL_BRANDS:
        return PermanentError(Reason.NOT_A_VIDEO, "the file is a still image")
    return None


def _is_text(start: bytes) -> bool:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in start)
    return controls == 0 and b"\x7f" not in start
