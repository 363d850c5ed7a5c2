from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.api.filenames import MAX_BYTES, safe_filename


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("holiday.mp4", "holiday.mp4"),
        ("../../etc/passwd", "passwd"),
        ("..", "video"),
        (".", "video"),
        ("", "video"),
        ("   ", "video"),
        ("///", "video"),
        ("\0\0", "video"),
        ("a\0b.mp4", "ab.mp4"),
        ("line\r\nbreak.mp4", "linebreak.mp4"),
        ("C:\\Users\\Ada\\clip.mov", "clip.mov"),
        ("folder/clip.mov/", "clip.mov"),
        ("x; rm -rf ~.mp4", "x_ rm -rf _.mp4"),
        ("${filename}", "__filename_"),
        ("clip;type=text.mp4", "clip_type=text.mp4"),
        ("déjà vu 映画 🎬.mp4", "déjà vu 映画 🎬.mp4"),
        ("👩‍🚀.mp4", "👩‍🚀.mp4"),
        ("evil\u202e4pm.exe", "evil4pm.exe"),
        ("not\ufffea\uffffcharacter\ufdd0.mp4", "notacharacter.mp4"),
        (".mp4", ".mp4"),
        ("trailing. . .", "trailing"),
        ("greek\u037ea\0\u0301.mp4", "greek_á.mp4"),
    ],
)
def test_a_name_keeps_what_is_harmless_and_loses_the_rest(name: str, expected: str) -> None:
    assert safe_filename(name) == expected


def test_a_long_name_is_cut_and_keeps_its_suffix() -> None:
    shortened = safe_filename("x" * 5000 + ".mp4")
    assert len(shortened.encode()) == MAX_BYTES
    assert shortened.endswith("x.mp4")


def test_a_long_name_is_cut_between_characters() -> None:
    shortened = safe_filename("🎬" * 2000 + ".mp4")
    assert len(shortened.encode()) <= MAX_BYTES
    assert set(shortened) == set("🎬.mp4")


def test_a_suffix_that_is_too_long_is_cut_like_a_name() -> None:
    assert safe_filename("a." + "y" * 5000) == "a." + "y" * 198


@given(st.text(max_size=400))
def test_any_name_becomes_one_short_printable_component(name: str) -> None:
    safe = safe_filename(name)
    assert 0 < len(safe.encode()) <= MAX_BYTES
    assert safe not in {".", ".."}
    assert not set(safe) & set("/\\;$\"'`<>\0\r\n")
    assert all(unicodedata.category(char) != "Cc" for char in safe)


@given(st.text(max_size=400))
def test_a_safe_name_is_left_as_it_is(name: str) -> None:
    assert safe_filename(safe_filename(name)) == safe_filename(name)
