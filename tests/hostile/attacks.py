"""Files that would make a careless reader open other files or connect to servers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.distorting import plain
from tests.hostile.making import TRACK, box, element, matroska, matroska_track, number, place, replaced


@dataclass(frozen=True, slots=True)
class Attack:
    """`is_plain`: nothing in it can pass for a video, so the reason must say so."""

    name: str
    data: bytes
    is_plain: bool = True


def attacks(folder: Path, secret: Path, url: str) -> Iterator[Attack]:
    """Every attack, aimed at the file `secret` and at the server of `url`; works in `folder`."""
    for target in (str(secret), secret.as_uri(), f"{url}/secret.ts"):
        yield from _scripts(target)
    whole = plain(folder / "whole.mov")
    for kind, where in (
        (b"url ", secret.as_uri().encode() + b"\0"),
        (b"url ", f"{url}/secret.mov\0".encode()),
        (b"alis", _alias(secret)),
        (b"rsrc", _alias(secret)),
    ):
        name = f"MOV with its pictures elsewhere ({kind.decode().strip()})"
        yield Attack(name, _elsewhere(whole, kind, where))
        yield Attack(f"compressed {name}", _compressed(_elsewhere(whole, kind, where)), is_plain=False)
    yield Attack("reference movie", _reference_movie(secret.as_uri().encode()))
    playlist = _hls(secret.as_uri())
    yield Attack("AVI with a playlist as its subtitles", _gab2(playlist), is_plain=False)
    yield Attack("playlist that looks like a transport stream", _with_syncs(playlist))
    yield Attack("playlist after an MP4's first box", box(b"ftyp", b"isom") + playlist, is_plain=False)
    yield Attack("playlist in a Matroska attachment", _attachment(playlist), is_plain=False)


def _scripts(target: str) -> Iterator[Attack]:
    yield Attack(f"HLS of {target}", _hls(target))
    yield Attack(f"HLS with a key at {target}", _hls("a.ts", key=target))
    yield Attack(f"HLS master of {target}", f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{target}\n".encode())
    yield Attack(f"HLS with a mark of UTF-8 before it of {target}", b"\xef\xbb\xbf" + _hls(target))
    yield Attack(
        f"DASH of {target}",
        f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
        f'<Representation id="1" bandwidth="1"><BaseURL>{target}</BaseURL></Representation></AdaptationSet></Period>'
        f"</MPD>".encode(),
    )
    yield Attack(f"concat script of {target}", f"ffconcat version 1.0\nfile '{target}'\n".encode())
    yield Attack(f"concat script without its head of {target}", f"file '{target}'\n".encode())
    yield Attack(f"concat protocol of {target}", f"concat:{target}|{target}\n".encode())
    session = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    media = f"a=control:{target}\r\nm=video 9 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
    yield Attack(f"SDP beside {target}", (session + media).encode())
    yield Attack(
        f"ASS with a font at {target}",
        f"[Script Info]\nScriptType: v4.00+\n[Fonts]\nfontname: {target}\n[Events]\n"
        f"Dialogue: 0,0:00:00.00,0:00:01.00,,,,,,,{{\\fn{target}}}x\n".encode(),
    )
    yield Attack(f"SRT naming {target}", f'1\n00:00:00,000 --> 00:00:01,000\n<img src="{target}">\n'.encode())
    yield Attack(f"SVG showing {target}", f'<svg xmlns:xlink="x"><image xlink:href="{target}"/></svg>'.encode())
    yield Attack(f"XSPF of {target}", f"<playlist><track><location>{target}</location></track></playlist>".encode())


def _hls(target: str, key: str | None = None) -> bytes:
    key_line = f'#EXT-X-KEY:METHOD=AES-128,URI="{key}"\n' if key else ""
    return (
        f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:5\n#EXT-X-MEDIA-SEQUENCE:0\n{key_line}#EXTINF:5,\n{target}\n"
        "#EXT-X-ENDLIST\n"
    ).encode()


def _elsewhere(movie: bytes, kind: bytes, where: bytes) -> bytes:
    """The movie without its pictures, and with a reference to where they are said to lie."""
    dref = struct.pack(">II", 0, 1) + box(kind, bytes(4), where)
    return replaced(movie, dref, *TRACK, b"mdia", b"minf", b"dinf", b"dref")


def _alias(path: Path) -> bytes:
    """A Macintosh alias record, version 2, with the absolute path as FFmpeg reads it."""
    text = str(path).encode()
    record = bytearray(150)
    struct.pack_into(">4sHH", record, 0, b"\0\0\0\0", 150, 2)
    record[10] = 4
    record[11:15] = b"disk"
    record[50] = 6
    record[51:57] = b"secret"
    struct.pack_into(">HH", record, 128, 1, 1)
    return (
        bytes(record) + struct.pack(">HH", 18, len(text)) + text + b"\0" * (len(text) % 2) + struct.pack(">hH", -1, 0)
    )


def _compressed(movie: bytes) -> bytes:
    """With a moov packed by zlib, which this project leaves to FFmpeg."""
    start, end = place(movie, b"moov")
    moov = box(b"moov", movie[start:end])
    packed = box(b"cmvd", struct.pack(">I", len(moov)), zlib.compress(moov))
    return replaced(movie, box(b"cmov", box(b"dcom", b"zlib"), packed), b"moov")


def _reference_movie(uri: bytes) -> bytes:
    reference = box(b"rdrf", bytes(4), b"url ", struct.pack(">I", len(uri)), uri)
    return box(b"ftyp", b"qt  ", bytes(4)) + box(b"moov", box(b"rmra", box(b"rmda", reference)))


def _with_syncs(text: bytes) -> bytes:
    """Text of many lines, with the sync byte of MPEG-TS ("G") wherever one belongs."""
    data = bytearray(text + b"# padding\n" * 200)
    data[::188] = b"G" * len(data[::188])
    data[:7] = b"#EXTM3U"
    return bytes(data)


def _chunk(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _gab2(playlist: bytes) -> bytes:
    """An AVI whose one packet of subtitles holds a playlist: how readers' files were once stolen through FFmpeg."""
    main = struct.pack("<14I", 40000, 0, 0, 0x10, 1, 0, 1, 0, 320, 180, 0, 0, 0, 0)
    stream = b"txts" + bytes(16) + struct.pack("<7I", 1, 25, 0, 1, 0, 0, 0) + bytes(8)
    head = _chunk(b"LIST", b"hdrl", _chunk(b"avih", main), _chunk(b"LIST", b"strl", _chunk(b"strh", stream),
                  _chunk(b"strf", bytes(40))))  # fmt: skip
    subtitles = b"GAB2\0" + struct.pack("<HI", 2, 4) + b"a\0\0\0" + struct.pack("<HI", 4, len(playlist)) + playlist
    return _chunk(b"RIFF", b"AVI ", head, _chunk(b"LIST", b"movi", _chunk(b"00tx", subtitles)))


def _attachment(playlist: bytes) -> bytes:
    names = element(b"\x46\x6e", b"a.m3u8"), element(b"\x46\x60", b"application/vnd.apple.mpegurl")
    attached = element(b"\x61\xa7", *names, number(b"\x46\xae", 7), element(b"\x46\x5c", playlist))
    tracks = element(b"\x16\x54\xae\x6b", matroska_track(1))
    return matroska(tracks, element(b"\x19\x41\xa4\x69", attached))
