"""The same cuts, whatever container and codec the footage came in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import PermanentError, Reason
from pipeline.media import KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests.clips import cut_frames
from tests.video.encodings import ENCODINGS, Encoding, write

SHOTS_S = (2.5, 3.0, 2.0)
CUTS_S = (2.5, 5.5)
TOLERANCE_S = 0.5


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(1) as opened:
        yield opened


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
def test_cuts_are_found_in_every_container_and_codec(pool: DecoderPool, tmp_path: Path, encoding: Encoding) -> None:
    path = tmp_path / f"clip.{encoding.suffix}"
    write(path, encoding, cut_frames(SHOTS_S, encoding.fps))
    with LocalSource(path) as source:
        extraction = pool.extract(source, KeyframeSettings(per_minute=60))
    assert extraction.video.codec == encoding.codec
    starts = max(0, encoding.ticks(0))  # what comes before zero is not displayed
    ticks = [encoding.ticks(round(cut * encoding.fps)) - starts for cut in CUTS_S]
    assert extraction.cuts_s == pytest.approx([tick / encoding.fps for tick in ticks], abs=TOLERANCE_S)
    assert extraction.coverage > 0.99
    shots = itertools.pairwise((0.0, *extraction.cuts_s, extraction.video.duration_s))
    times_s = [keyframe.t_s for keyframe in extraction.keyframes]
    shown = [any(start_s - 0.1 <= t_s < end_s for t_s in times_s) for start_s, end_s in shots]
    assert all(shown), f"of the shots between {extraction.cuts_s} keyframes at {times_s} show {shown}"


def test_raw_streams_without_a_container_are_turned_away_with_a_reason(pool: DecoderPool, tmp_path: Path) -> None:
    for suffix, encoder, pixels, size_px in (
        ("h264", "libx264", "yuv420p", (320, 180)),
        ("dv", "dvvideo", "yuv420p", (720, 576)),
    ):
        encoding = Encoding("raw", suffix, encoder, encoder, {}, pixels, size_px, fps=25)
        path = tmp_path / f"clip.{suffix}"
        write(path, encoding, cut_frames((1.0,), 25))
        with LocalSource(path) as source, pytest.raises(PermanentError) as raised:
            pool.extract(source, KeyframeSettings())
        assert raised.value.reason is Reason.NOT_A_VIDEO
