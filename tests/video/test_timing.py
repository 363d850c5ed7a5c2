from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipeline.video.index import SampleIndex
from pipeline.video.timing import with_sound_times
from tests.video.synthetic import index_of


def with_times(times: list[int]) -> SampleIndex:
    index = index_of([100] * len(times), [0])
    dts = np.array(times, np.int64)
    return dataclasses.replace(index, dts=dts, pts=dts, start_pts=min(times), end_pts=max(times) + 1)


def test_times_that_rise_are_left_as_they_are() -> None:
    index = with_times([0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 12])
    assert with_sound_times(index) is index


@pytest.mark.parametrize(
    "times",
    [
        [9, 8, 7, 6, 5, 4, 3],
        [5, 5, 5, 5, 5, 5],
        [0, 1, 2, 3, 0, 1, 2, 3],
        [0, 10, 20, -(2**40), 30, 40],
        [0, *([2**53, -(2**53)] * 2000)],
    ],
)
def test_others_are_made_to_rise_and_that_is_said(times: list[int]) -> None:
    index = with_sound_times(with_times(times))
    assert (np.diff(index.dts) > 0).all()
    assert len(set(index.pts.tolist())) == len(times)
    assert index.end_pts > index.pts.max()
    assert index.warnings[-1].startswith("timestamps out of order: ")


def test_a_stream_that_starts_again_is_one_after_the_other() -> None:
    index = with_sound_times(with_times([0, 10, 20, 30, 0, 10, 20, 30]))
    assert index.dts.tolist() == [0, 10, 20, 30, 40, 50, 60, 70]


def test_display_order_survives() -> None:
    index = with_times([0, 10, 20, 30, 0, 10, 20, 30])
    index = dataclasses.replace(index, pts=index.dts + np.array([0, 20, 0, 10] * 2))
    assert with_sound_times(index).pts.tolist() == [0, 30, 20, 40, 40, 70, 60, 80]
