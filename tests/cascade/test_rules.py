from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cascade.rules import AnswerRule, Thresholds
from tests.cascade.fakes import rule

shares = st.floats(0, 1)


def calibration(*points: tuple[float, float]) -> Thresholds:
    return Thresholds.model_validate({"positive_at": 0.8, "negative_at": 0.2, "calibration": points})


@st.composite
def lines(draw: st.DrawFn) -> Thresholds:
    said = sorted(draw(st.sets(shares, min_size=2, max_size=10)))
    meant = sorted(draw(st.lists(shares, min_size=len(said), max_size=len(said))))
    return calibration(*zip(said, meant, strict=True))


@pytest.mark.parametrize(
    ("score", "meant"),
    [(0.0, 0.1), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5), (0.7, 0.7), (1.0, 0.9)],
)
def test_a_calibration_is_a_line_between_its_points_and_flat_beyond(score: float, meant: float) -> None:
    assert calibration((0.2, 0.1), (0.4, 0.5), (1.0, 0.9)).calibrated(score) == pytest.approx(meant)


@given(lines(), shares, shares)
def test_a_calibrated_score_is_a_share_and_keeps_the_order(line: Thresholds, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0.0 <= line.calibrated(low) <= 1.0
    assert line.calibrated(low) <= line.calibrated(high) + 1e-12


@given(shares)
def test_without_points_a_score_means_itself(score: float) -> None:
    assert Thresholds(positive_at=0.8, negative_at=0.2).calibrated(score) == score


def test_no_number_stays_no_number() -> None:
    assert math.isnan(calibration((0.0, 0.0), (1.0, 1.0)).calibrated(math.nan))


@pytest.mark.parametrize(("combine", "needed"), [(None, 1), ("any", 1), ("mean", 1), ({"at_least": 3}, 3)])
def test_a_rule_says_how_many_must_say_yes(combine: object, needed: int) -> None:
    assert AnswerRule.model_validate(rule("a") | {"combine": combine}).yes_needed == needed
