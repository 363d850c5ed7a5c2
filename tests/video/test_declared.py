from __future__ import annotations

import struct

import pytest

from pipeline.video.declared import declared_bytes, declared_duration_s, misnamed, suffix_of


@pytest.mark.parametrize(
    ("name", "container_format", "is_misnamed"),
    [
        ("a.mp4", "mov", False),
        ("A.MOV", "mov", False),
        ("a.webm", "matroska", False),
        ("a.avi", "mov", True),
        ("s3://bucket/a.mp4", "matroska", True),
        ("a.gif", "mov", True),
        ("a", "mov", False),
        ("a.bin", "mov", False),
        ("a.mp4/..\u202e", "avi", False),
    ],
)
def test_a_name_that_promises_another_container_is_a_warning(
    name: str, container_format: str, is_misnamed: bool
) -> None:
    assert (misnamed(name, container_format) is not None) is is_misnamed


@pytest.mark.parametrize("name", ["a.toolongsuffix", "a.m p", "a.\x1b[2J", "a.мп4", ""])
def test_only_letters_and_digits_make_a_suffix(name: str) -> None:
    assert suffix_of(name) == ""


def test_containers_say_how_long_they_should_be() -> None:
    assert declared_bytes(b"RIFF" + struct.pack("<I", 992) + b"AVI ", "avi") == 1000
    assert declared_bytes(b"RIFF" + bytes(4) + b"AVI ", "avi") is None
    ebml = b"\x1aE\xdf\xa3\x84abcd"
    assert declared_bytes(ebml + b"\x18\x53\x80\x67\x40\x64", "matroska") == len(ebml) + 6 + 100
    assert declared_bytes(ebml + b"\x18\x53\x80\x67\x01" + b"\xff" * 7, "matroska") is None
    assert declared_bytes(b"\x1aE\xdf\xa3", "matroska") is None
    assert declared_bytes(b"\x1aE\xdf\xa3\x00", "matroska") is None
    assert declared_bytes(b"FLV\x01", "flv") is None


def test_an_avi_says_how_long_it_plays() -> None:
    head = b"RIFF....AVI LIST....hdrlavih" + struct.pack("<I", 56) + struct.pack("<5I", 40_000, 0, 0, 0, 250)
    assert declared_duration_s(head, "avi") == pytest.approx(10.0)
    assert declared_duration_s(head[:40], "avi") == 0
    assert declared_duration_s(head, "flv") == 0
