from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.results import table
from tests.bench.scoring import Score, Truth, ratio, read_truth, score
from tests.bench.scripts import frames, script

TRUTH = Truth(
    group="web",
    duration_s=60.0,
    cuts_s=(10.0, 20.0),
    gradual=(("dissolve", 29.5, 30.5), ("fade", 40.0, 41.0)),
    motion=((50.0, 52.0, "obj-60"),),
    motion_scored=((45.0, 60.0),),
    flashes=((5.0, 5.1),),
)


def test_each_truth_takes_one_cut_and_the_rest_is_false() -> None:
    found, misses = score(TRUTH, [10.4, 10.2, 20.6, 30.1, 5.2], [])
    assert (found.hard, found.hard_of, found.dissolves, found.fades) == (1, 2, 1, 0)
    assert misses.false_cuts_s == [5.2, 10.4, 20.6]
    assert (found.at_flashes, found.flashes_of) == (1, 1)
    assert found.precision == pytest.approx(2 / 5)
    assert found.recall == pytest.approx(2 / 4)
    assert found.f1 == pytest.approx(4 / 9)


def test_onsets_count_only_where_motion_is_scored() -> None:
    found, misses = score(TRUTH, [], [20.0, 50.9, 57.0])
    assert (found.onsets, found.onsets_of, found.false_onsets) == (1, 1, 1)
    assert misses.false_onsets_s == [57.0]


def test_scores_add_up() -> None:
    one = score(TRUTH, [10.0], [50.0])[0]
    both = one + one
    assert isinstance(both, Score)
    assert both.hard_of == 4
    assert ratio(0, 0) == 1.0


def test_truth_files_of_other_corpora_need_no_group(tmp_path: Path) -> None:
    plain = {"duration": 30.0, "cuts": [6.0], "gradual": [], "motion": [], "motion_scored": []}
    (tmp_path / "a_phone_h264.json").write_text(json.dumps(plain))
    truth = read_truth(tmp_path / "a_phone_h264.mp4")
    assert truth.group == "phone"
    assert truth.cuts_s == (6.0,)


@pytest.mark.parametrize("kind", ["edit", "static"])
def test_a_script_is_the_same_for_the_same_seed_and_its_events_lie_within_it(kind: str) -> None:
    one, same, other = (script(kind, seed, 20.0, (160, 96)) for seed in (3, 3, 4))
    assert one.truth("a", "web") == same.truth("a", "web")
    assert one.truth("a", "web") != other.truth("a", "web")
    assert all(0 < shot.start_s < 20 for shot in one.shots[1:])
    first = next(frames(one))
    assert first.shape == (96, 160, 3)
    assert np.array_equal(first, next(frames(same)))


def test_tables_are_markdown() -> None:
    assert table([["a", "b"], ["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
