"""Where sizes alone point: at what replaces or blends the picture, not at what an encoder does every second."""

from __future__ import annotations

import numpy as np

from pipeline.video.likely import blends, suspicious_places
from tests.video.synthetic import FPS, index_of

_GOP = 30
_CUT, _BLEND = 315, (510, 540)


def _sizes(count: int = 900) -> tuple[list[int], list[int]]:
    """Short GOPs at a held bit rate: each key is followed by small samples that grow to the usual size."""
    generator = np.random.default_rng(3)
    sizes = 30_000 + generator.normal(0, 900, count)
    for key in range(0, count, _GOP):
        sizes[key + 1 : key + 6] *= (0.5, 0.65, 0.8, 0.9, 0.95)
        sizes[key] = 180_000
    return [int(size) for size in sizes], list(range(0, count, _GOP))


def test_a_steady_stream_points_nowhere() -> None:
    index = index_of(*_sizes())
    assert suspicious_places(index, index.t_s) == ()


def test_a_replaced_picture_and_a_blend_are_pointed_at() -> None:
    sizes, keys = _sizes()
    sizes[_CUT] = 210_000
    for sample in range(*_BLEND):
        sizes[sample] = int(sizes[sample] * 1.9) if sample not in keys else sizes[sample]
    for key in keys:  # the next scenes' keys are of other sizes
        sizes[key] = int(sizes[key] * (1.0 if key < _CUT else 1.5 if key < _BLEND[0] else 0.8))
    index = index_of(sizes, keys)
    places = suspicious_places(index, index.t_s)
    assert any(place.sample == _CUT and not place.is_gradual for place in places)
    assert any(_BLEND[0] / FPS <= place.t_s <= _BLEND[1] / FPS and place.is_gradual for place in places)


def test_a_stream_too_short_to_tell_points_nowhere() -> None:
    index = index_of([9_000] * 40, [0, 10, 20, 30])
    assert suspicious_places(index, index.t_s) == ()


def test_a_blend_of_a_long_gop_is_pointed_at_and_steady_motion_is_not() -> None:
    generator = np.random.default_rng(5)
    sizes = [int(2_000 * generator.uniform(0.8, 1.25)) for _ in range(900)]
    sizes[0] = sizes[250] = sizes[500] = sizes[750] = 60_000
    steady = index_of(sizes, [0, 250, 500, 750])
    assert blends(steady, steady.t_s) == ()
    for sample in range(*_BLEND):
        sizes[sample] *= 9
    index = index_of(sizes, [0, 250, 500, 750])
    (place,) = blends(index, index.t_s)
    assert _BLEND[0] / FPS <= place.t_s <= _BLEND[1] / FPS


def test_a_stream_without_keys_points_nowhere() -> None:
    index = index_of([9_000] * 400, [])
    assert blends(index, index.t_s) == ()


def test_a_blend_is_found_in_every_piece_of_a_long_stream() -> None:
    generator = np.random.default_rng(6)
    count = 40_000
    sizes = generator.integers(1_600, 2_500, count)
    keys = list(range(0, count, 250))
    sizes[keys] = 60_000
    middles = (9_100, 18_010, 35_110)  # the second across the border of two pieces
    for middle in middles:
        sizes[middle - 15 : middle + 15] *= 9
        sizes[keys] = 60_000
    index = index_of(sizes.tolist(), keys)
    assert [round(place.t_s) for place in blends(index, index.t_s)] == [round(middle / FPS) for middle in middles]
