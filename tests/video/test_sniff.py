from __future__ import annotations

import pytest

from pipeline.errors import PermanentError, Reason
from pipeline.video.sniff import container_format


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"", Reason.EMPTY_FILE),
        (b"hello, this is no video\n", Reason.NOT_A_VIDEO),
        (b"<!DOCTYPE html><html></html>", Reason.NOT_A_VIDEO),
        (b"#EXTM3U\n#EXTINF:9,\nfile:///etc/passwd\n", Reason.NOT_A_VIDEO),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", Reason.NOT_A_VIDEO),
        (b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n", Reason.NOT_A_VIDEO),
        (b"<?xml version='1.0'?><MPD/>", Reason.NOT_A_VIDEO),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), Reason.NOT_A_VIDEO),
        (bytes(range(256)) * 8, Reason.NOT_A_VIDEO),
        (bytes(5000), Reason.NOT_A_VIDEO),
        (b"ID3\x04" + bytes(100), Reason.NO_VIDEO_STREAM),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", Reason.NO_VIDEO_STREAM),
        (b"0&\xb2u\x8ef\xcf\x11" + bytes(100), Reason.UNSUPPORTED_CODEC),
        (b"\x00\x00\x00\x18ftypheic" + bytes(100), Reason.NOT_A_VIDEO),
    ],
)
def test_what_is_no_accepted_video_is_turned_away_with_its_reason(head: bytes, reason: Reason) -> None:
    with pytest.raises(PermanentError) as raised:
        container_format(head)
    assert raised.value.reason is reason


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\x00\x00\x00\x18ftypisom" + bytes(100), "mov"),
        (b"\x00\x00\x00\x08wide" + bytes(100), "mov"),
        (b"\x1aE\xdf\xa3" + bytes(100), "matroska"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", "avi"),
        ((b"\x47" + bytes(187)) * 10, "mpegts"),
        (bytes(50) + (b"\x47" + b"\x01" * 187) * 10, "mpegts"),
    ],
)
def test_accepted_containers_are_known_by_their_first_bytes(head: bytes, name: str) -> None:
    assert container_format(head) == name
