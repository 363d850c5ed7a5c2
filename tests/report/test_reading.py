import math

import pytest

from pipeline.report import reading, wording
from pipeline.report.reading import MAX_TEXT_CHARS


@pytest.mark.parametrize("value", [None, True, "3", math.nan, math.inf, 10**400, [1]])
def test_what_is_no_finite_number_reads_as_nothing(value: object) -> None:
    assert reading.number(value) is None


@pytest.mark.parametrize("value", [None, True, 1.5, "7", 10**30, -(10**4000)])
def test_what_is_no_plausible_integer_reads_as_nothing(value: object) -> None:
    assert reading.whole(value) is None
    assert reading.count(value) == 0


def test_text_cannot_turn_the_direction_of_writing_or_hide_anything() -> None:
    assert reading.text("gpj\u202eexe\x00\n\udcff.mp4") == "gpj\\u202eexe\\u0000\\u000a\\udcff.mp4"


def test_scripts_and_emoji_that_need_joiners_stay_whole() -> None:
    family = "👩\u200d👧 می\u200cخواهم.mp4"
    assert reading.text(family) == family


def test_long_text_keeps_its_beginning_and_its_end() -> None:
    shown = reading.text("a" * 5000 + "z.mp4")
    assert len(shown) == MAX_TEXT_CHARS + 1
    assert shown.startswith("aaa")
    assert shown.endswith("z.mp4")


@pytest.mark.parametrize(
    ("t_s", "expected"),
    [
        (0.0, "0:00.0"),
        (12.44, "0:12.4"),
        (59.96, "1:00.0"),
        (3723.0, "1:02:03.0"),
        (-1.5, "−0:01.5"),
        (1e300, "1e+300 s"),
    ],
)
def test_times_read_like_a_players(t_s: float, expected: str) -> None:
    assert wording.clock(t_s) == expected


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (19_344_000, "19.3 MB"),
        (253_000_000, "253 MB"),
        (10**16, "10,000 TB"),
    ],
)
def test_sizes_are_decimal(size_bytes: int, expected: str) -> None:
    assert wording.bytes_text(size_bytes) == expected


def test_shares_never_round_something_down_to_nothing() -> None:
    assert wording.share_text(1, 1_000_000) == "under 0.1%"
    assert wording.share_text(0, 10) == "0.0%"
    assert wording.share_text(1, 0) == "–"
