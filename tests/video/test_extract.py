from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import PermanentError, Reason
from pipeline.media import Extraction, KeyframeReason, KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from pipeline.video.synthesis import write_clip
from tests import clips

CORPUS = Path(os.environ.get("VIDEOSIEVE_TEST_CORPUS", "no-corpus"))
SETTINGS = KeyframeSettings(per_minute=30)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(1) as shared:
        yield shared


def extraction(pool: DecoderPool, path: Path, settings: KeyframeSettings = SETTINGS) -> Extraction:
    with LocalSource(path) as source:
        return pool.extract(source, settings)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".flv"])
def test_cuts_are_found_in_every_container(pool: DecoderPool, tmp_path: Path, suffix: str) -> None:
    found = extraction(pool, clips.write_cuts(tmp_path / f"a{suffix}", (2.0, 3.0, 2.0)))
    assert found.cuts_s == pytest.approx((2.0, 5.0), abs=0.1)
    assert found.video.duration_s == pytest.approx(7.0, abs=0.15)
    assert found.coverage > 0.99


def test_cuts_within_and_on_the_beat_of_a_phones_keys_are_found(pool: DecoderPool, tmp_path: Path) -> None:
    frames = clips.cut_frames((3.0, 2.5, 3.7))  # the first on a key, the second between two
    found = extraction(pool, clips.write_phone_like(tmp_path / "a.mp4", frames))
    assert found.cuts_s == pytest.approx((3.0, 5.5), abs=0.1)


def test_motion_before_a_still_camera_is_found(pool: DecoderPool, tmp_path: Path) -> None:
    frames = clips.moving_frames(14.0, ((7.0, 9.5),))
    write_clip(tmp_path / "a.mp4", frames, 30, options={"preset": "veryfast", "g": "250"})
    found = extraction(pool, tmp_path / "a.mp4")
    assert found.cuts_s == ()
    assert [start_s for start_s, _ in found.motion_s] == pytest.approx([7.0], abs=1.0)
    shown = [k.t_s for k in found.keyframes if k.reason is KeyframeReason.MOTION]
    assert shown
    assert all(7.0 <= t_s < 9.7 for t_s in shown)


def test_keyframe_images_are_the_frames_that_their_times_name(pool: DecoderPool, tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 120, options={"preset": "veryfast", "g": "30"})
    found = extraction(pool, path)
    assert len(found.keyframes) >= 2
    for keyframe, image in zip(found.keyframes, found.images, strict=True):
        assert clips.frame_number(image) == round(keyframe.t_s * 30)


def test_a_stream_with_one_key_is_looked_at_as_far_as_the_budget_goes(pool: DecoderPool, tmp_path: Path) -> None:
    options = {"preset": "ultrafast", "g": "9999", "keyint_min": "9999", "sc_threshold": "0"}
    write_clip(tmp_path / "a.mp4", clips.cut_frames((6.0, 18.0)), 30, options=options)
    found = extraction(pool, tmp_path / "a.mp4")
    assert found.cuts_s == pytest.approx((6.0,), abs=0.1)
    assert any(warning.startswith("few key frames") for warning in found.warnings)
    assert 0.3 < found.coverage < 0.9


def test_all_intra_streams_are_sampled(pool: DecoderPool, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mov", clips.cut_frames((3.0, 3.0)), 30, "mjpeg", {})
    found = extraction(pool, tmp_path / "a.mov")
    assert found.cuts_s == pytest.approx((3.0,), abs=0.5)
    assert found.cost.frames_decoded < 40


def test_a_small_file_is_read_in_a_few_ranges_and_its_keys_are_decoded_once(pool: DecoderPool, tmp_path: Path) -> None:
    path = clips.write_cuts(tmp_path / "a.mp4", (2.0, 3.0, 2.0))
    found = extraction(pool, path)
    assert path.stat().st_size < 1_000_000
    assert found.cost.ranges <= 5
    assert found.cost.frames_decoded <= 12


def test_a_dissolve_is_found_within_its_range_and_a_flash_is_no_cut(pool: DecoderPool, tmp_path: Path) -> None:
    grain = np.random.default_rng(3)
    one, other = (np.clip(clips.scene(s) + grain.normal(0, 20, (180, 320, 1)), 0, 255) for s in (11, 12))
    frames = []
    for number in range(360):
        share = float(np.clip((number - 200) / 30, 0, 1))
        image = (1 - share) * one + share * other + (90 if number in {80, 81} else 0)
        frames.append(np.clip(image, 0, 255).astype(np.uint8))
    write_clip(tmp_path / "a.mp4", frames, 30, options={"preset": "veryfast", "g": "250"})
    found = extraction(pool, tmp_path / "a.mp4")
    assert len(found.cuts_s) == 1
    assert 200 / 30 - 0.1 <= found.cuts_s[0] <= 230 / 30 + 0.1


def test_a_single_frame_is_its_own_keyframe(pool: DecoderPool, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", [clips.scene(1)], 30)
    found = extraction(pool, tmp_path / "a.mp4")
    assert [keyframe.t_s for keyframe in found.keyframes] == [0.0]


def test_samples_without_meaning_are_corrupt(pool: DecoderPool, tmp_path: Path) -> None:
    path = clips.write_cuts(tmp_path / "a.mp4", (1.0,))
    data = bytearray(path.read_bytes())
    start, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    with pytest.raises(PermanentError) as raised:
        extraction(pool, path)
    assert raised.value.reason is Reason.CORRUPT


@pytest.mark.skipif(not CORPUS.is_dir(), reason="VIDEOSIEVE_TEST_CORPUS names no folder of clips with known cuts")
def test_real_footage_gives_its_cuts_and_motion_for_few_frames(pool: DecoderPool) -> None:
    for path in sorted(CORPUS.glob("*.mp4")):
        truth = json.loads(path.with_suffix(".json").read_text())
        found = extraction(pool, path, KeyframeSettings())
        hits = [cut for cut in truth["cuts"] if any(abs(cut - t_s) <= 0.5 for t_s in found.cuts_s)]
        assert len(hits) >= 0.9 * len(truth["cuts"]), path.name
        assert len(found.cuts_s) - len(hits) <= 1, path.name
        onsets = [m for m in truth["motion"] if any(abs(m[0] - start_s) <= 1 for start_s, _ in found.motion_s)]
        assert len(onsets) >= 0.6 * len(truth["motion"]), path.name
        assert found.cost.frames_decoded < 0.05 * found.video.frames, path.name
