from __future__ import annotations

import numpy as np
import pytest

from pipeline.video.compare import Picture
from pipeline.video.motion import _grounds, find_motion
from pipeline.video.signals import signals
from tests.video.synthetic import evidence_of, index_of, picture


def with_square(left_px: int | None) -> Picture:
    thumbnail = picture(1).thumbnail.copy()
    if left_px is not None:
        thumbnail[30:54, left_px : left_px + 24] = 250
    return Picture(thumbnail)


def test_a_lasting_rise_of_the_sizes_is_motion() -> None:
    keys = list(range(0, 1800, 250))
    sizes = [40_000 if s in keys else 900 if 600 <= s < 700 else 60 for s in range(1800)]
    (moving,) = find_motion(signals(index_of(sizes, keys)), evidence_of({}), []).motion
    assert moving.start_s == pytest.approx(20.0, abs=0.4)
    assert moving.end_s == pytest.approx(23.3, abs=0.5)


def test_a_single_large_sample_is_no_motion() -> None:
    keys = list(range(0, 1800, 250))
    sizes = [40_000 if s in keys else 9000 if s == 700 else 60 for s in range(1800)]
    assert find_motion(signals(index_of(sizes, keys)), evidence_of({}), []).motion == ()


def noisy(count: int = 600) -> tuple[list[int], list[int]]:
    generator = np.random.default_rng(0)
    keys = list(range(0, count, 30))
    return [40_000 if s % 30 == 0 else int(generator.integers(9_000, 11_000)) for s in range(count)], keys


def test_in_noisy_streams_changed_areas_between_keys_are_motion() -> None:
    sizes, keys = noisy()
    places = {key: None if not 240 <= key <= 330 else (key - 240) // 2 for key in keys}
    evidence = evidence_of({key: with_square(place) for key, place in places.items()})
    (moving,) = find_motion(signals(index_of(sizes, keys)), evidence, []).motion
    assert moving.start_s == pytest.approx(7.5, abs=0.6)


def test_a_moving_camera_is_no_motion_before_a_still_one() -> None:
    sizes, keys = noisy()
    evidence = evidence_of({key: picture(1, shift_px=key // 6) for key in keys})
    assert find_motion(signals(index_of(sizes, keys)), evidence, []).motion == ()


def test_gaps_between_decoded_keys_are_wished_for() -> None:
    sizes, keys = noisy()
    evidence = evidence_of({key: picture(1) for key in keys[::3]})
    wishes = find_motion(signals(index_of(sizes, keys)), evidence, []).wishes
    assert wishes
    assert all(run.samples[0] in keys and run.samples[0] not in evidence.exact for run in wishes)


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_the_background_is_the_median_of_the_keys_beside(count: int) -> None:
    pictures = np.random.default_rng(count).uniform(0, 255, (count + 1, 6, 7)).astype(np.float32)
    (ground,) = _grounds(pictures, count)
    assert np.array_equal(ground, np.median(pictures[:count], axis=0).astype(np.float32))
