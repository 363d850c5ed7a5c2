from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.media import KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import ByteRange, LocalSource
from tests import clips
from tests.bench.footprint import measure, peak_pss_mb, ranged_source, repeat, report


def test_a_repeated_clip_is_as_long_as_asked_and_shown_in_every_part(tmp_path: Path) -> None:
    clip = clips.write_cuts(tmp_path / "a.mp4", (2.0, 2.0))
    long = tmp_path / "long.mp4"
    repeat(clip, long, 120.0)
    with DecoderPool(1) as pool, LocalSource(long) as source:
        found = measure(pool, long, source, "long")
    assert found.minutes == pytest.approx(2.0, abs=0.05)
    assert found.keyframes == 10
    assert found.widest_gap_s < 40
    assert found.peak_mb >= found.idle_mb > 10
    assert "long" in report([found])


def test_ranged_gets_give_the_same_keyframes_as_the_disk(tmp_path: Path) -> None:
    clip = clips.write_cuts(tmp_path / "a.mp4")
    with DecoderPool(1) as pool, LocalSource(clip) as local, ranged_source(clip) as remote:
        assert remote.read_ranges([ByteRange(10, 20)]) == local.read_ranges([ByteRange(10, 20)])
        settings = KeyframeSettings(per_minute=30)
        assert pool.extract(remote, settings).keyframes == pool.extract(local, settings).keyframes


def test_the_peak_counts_what_was_held_only_for_a_while() -> None:
    with peak_pss_mb() as samples:
        held = bytearray(b"x" * 60_000_000)
        samples.extend(samples[-1:])
        while len(samples) < 6:
            len(held)
        del held
    assert max(samples) > samples[0] + 40
