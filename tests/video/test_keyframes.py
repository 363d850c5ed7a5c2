from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from pipeline.media import KeyframeReason, KeyframeSettings
from pipeline.video.findings import Cut
from pipeline.video.keyframes import choose_keyframes, wanted_keyframes
from pipeline.video.motion import Motion
from pipeline.video.signals import signals
from tests.video.synthetic import blank, evidence_of, index_of, picture

SETTINGS = KeyframeSettings()
MINUTE = [20_000 if sample % 60 == 0 else 500 for sample in range(1800)]
KEYS = list(range(0, 1800, 60))


def test_one_at_least_and_about_five_a_minute() -> None:
    assert wanted_keyframes(0.1, SETTINGS) == 1
    assert wanted_keyframes(60, SETTINGS) == 5
    assert wanted_keyframes(4 * 3600, SETTINGS) == SETTINGS.max_keyframes


def test_every_scene_gives_its_first_key_and_the_start_is_one() -> None:
    found = signals(index_of(MINUTE, KEYS))
    cuts = [Cut(20.0, 600, 0.9), Cut(40.0, 1200, 0.8)]
    evidence = evidence_of({key: picture(key // 600, key % 600 // 60) for key in KEYS})
    chosen = choose_keyframes(found, evidence, cuts, [], SETTINGS, 50)
    by_reason = {choice.sample: choice.keyframe.reason for choice in chosen}
    assert len(chosen) == 5
    assert by_reason[0] is KeyframeReason.START
    assert by_reason[600] is by_reason[1200] is KeyframeReason.SCENE_CUT
    assert list(by_reason.values()).count(KeyframeReason.COVERAGE) == 2
    assert [choice.keyframe.t_s for choice in chosen] == sorted(choice.keyframe.t_s for choice in chosen)


def test_motion_is_shown_by_the_key_in_its_middle() -> None:
    found = signals(index_of(MINUTE, KEYS))
    evidence = evidence_of({key: picture(1) for key in KEYS})
    chosen = choose_keyframes(found, evidence, [], [Motion(19.5, 24.5, 0.8)], SETTINGS, 50)
    (moving,) = [choice for choice in chosen if choice.keyframe.reason is KeyframeReason.MOTION]
    assert moving.keyframe.t_s == pytest.approx(22.0)


def test_motion_that_no_key_shows_is_reached_from_the_key_before_while_frames_are_left() -> None:
    keys = list(range(0, 1800, 240))
    found = signals(index_of([20_000 if s % 240 == 0 else 500 for s in range(1800)], keys))
    evidence = evidence_of({key: picture(1) for key in keys})
    motion = [Motion(17.0, 19.0, 0.8)]
    chosen = choose_keyframes(found, evidence, [], motion, SETTINGS, 90)
    assert any(c.keyframe.reason is KeyframeReason.MOTION and 17 <= c.keyframe.t_s < 19 for c in chosen)
    frugal = choose_keyframes(found, evidence, [], motion, SETTINGS, 10)
    assert all(choice.sample in keys for choice in frugal)


def test_black_pictures_are_taken_only_when_there_is_nothing_else() -> None:
    found = signals(index_of(MINUTE, KEYS))
    dark_start = {key: blank() if key < 300 else picture(2) for key in KEYS}
    chosen = choose_keyframes(found, evidence_of(dark_start), [], [], SETTINGS, 50)
    assert all(choice.sample >= 300 for choice in chosen)
    dark = choose_keyframes(found, evidence_of({key: blank() for key in KEYS}), [], [], SETTINGS, 50)
    assert dark


def test_a_part_full_of_cuts_does_not_keep_the_rest_of_a_long_video_from_sight() -> None:
    found = signals(index_of(MINUTE * 10, list(range(0, 18_000, 60))))
    evidence = evidence_of({key: picture(key // 120) for key in range(0, 18_000, 60)})
    cuts = [Cut(t_s, round(30 * t_s), 0.9) for t_s in np.arange(4.0, 240.0, 4.0).tolist()]
    late = [Cut(t_s, round(30 * t_s), 0.6) for t_s in np.arange(244.0, 600.0, 4.0).tolist()]
    chosen = choose_keyframes(found, evidence, cuts + late, [], SETTINGS, 50)
    assert len(chosen) == 50
    minutes = {
        int(choice.keyframe.t_s // 60) for choice in chosen if choice.keyframe.reason is KeyframeReason.SCENE_CUT
    }
    assert minutes == set(range(10))


def test_nothing_decoded_gives_nothing() -> None:
    assert choose_keyframes(signals(index_of(MINUTE, KEYS)), evidence_of({}), [], [], SETTINGS, 50) == []


@trials(deadline=None)
@given(
    cut_samples=st.sets(st.integers(1, 1799), max_size=20),
    per_minute=st.floats(1, 60),
    min_gap_s=st.floats(0.1, 10),
)
def test_choices_keep_the_settings_whatever_was_found(
    cut_samples: set[int], per_minute: float, min_gap_s: float
) -> None:
    settings = KeyframeSettings(per_minute=per_minute, min_gap_s=min_gap_s, max_keyframes=20)
    found = signals(index_of(MINUTE, KEYS))
    evidence = evidence_of({key: picture(key // 300) for key in KEYS[::3]})
    cuts = [Cut(sample / 30, sample, 0.7) for sample in sorted(cut_samples)]
    chosen = choose_keyframes(found, evidence, cuts, [], settings, 50)
    times_s = [choice.keyframe.t_s for choice in chosen]
    assert 1 <= len(chosen) <= min(20, wanted_keyframes(60, settings))
    assert (np.diff(times_s) >= min_gap_s - 1e-9).all()
    assert all(0 <= choice.keyframe.score <= 1 for choice in chosen)
