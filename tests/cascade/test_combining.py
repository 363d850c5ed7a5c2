"""How keyframes combine, over one stage and over several."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cascade.cascade import run_cascade
from pipeline.cascade.crops import View, merged
from pipeline.detections import Detection, Findings
from pipeline.verdict import Answer, CascadeOutcome
from tests.cascade.fakes import FakeModels, numbered, policy, rule, scripted


def judged(combine: Any, *stages: tuple[float, ...]) -> tuple[CascadeOutcome, FakeModels]:
    """One question over stages s0, s1, …; `stages[n][i]` is what stage n says of keyframe i."""
    names = [f"s{number}" for number in range(len(stages))]
    asked = policy({name: {"q": rule("a") | {"combine": combine}} for name in names})
    scorers = {
        name: scripted(name, *({"a": score} for score in scores)) for name, scores in zip(names, stages, strict=True)
    }
    models = FakeModels(**scorers)
    return run_cascade(asked, numbered(len(stages[0])), models), models


@pytest.mark.parametrize(
    ("combine", "scores", "answer", "score", "evidence"),
    [
        ("any", (0.1, 0.9, 0.1), Answer.POSITIVE, 0.9, (1,)),
        ({"at_least": 2}, (0.9, 0.1, 0.85, 0.1), Answer.POSITIVE, 0.85, (0, 2)),
        ({"at_least": 2}, (0.9, 0.1, 0.2, 0.1), Answer.NEGATIVE, 0.2, (0, 1, 2, 3)),
        ({"at_least": 2}, (0.9, 0.1, 0.5, 0.1), Answer.REVIEW, 0.5, (0, 2)),
        ({"at_least": 3}, (0.5, 0.6, 0.1), Answer.NEGATIVE, 0.1, (0, 1, 2)),  # both doubtful would not be enough
        ({"at_least": 3}, (0.9, 0.9), Answer.POSITIVE, 0.9, (0, 1)),  # all of a short video are enough
        ({"at_least": 3}, (0.9, 0.5), Answer.REVIEW, 0.5, (0, 1)),
        ("mean", (1.0, 1.0, 0.5), Answer.POSITIVE, 2.5 / 3, (0, 1)),
        ("mean", (1.0, 0.9, 0.4), Answer.REVIEW, 2.3 / 3, (0, 1, 2)),
        ("mean", (0.25, 0.0, 0.25), Answer.NEGATIVE, 0.5 / 3, (0, 1, 2)),
        ("mean", (0.9, math.nan, 0.9), Answer.REVIEW, 0.5, (0, 1, 2)),
    ],
)
def test_one_stage_combines_its_keyframes(
    combine: Any, scores: tuple[float, ...], answer: Answer, score: float, evidence: tuple[int, ...]
) -> None:
    outcome, _ = judged(combine, scores)
    (verdict,) = outcome.verdicts
    assert (verdict.answer, verdict.evidence) == (answer, evidence)
    assert verdict.score == pytest.approx(score, nan_ok=True)


@pytest.mark.parametrize("combine", [None, {"at_least": 2}, "mean"])
def test_a_stage_that_is_to_say_no_only_never_says_yes_however_sure_its_model_is(combine: Any) -> None:
    """Sigmoids and softmaxes round to 1.0; `positive_at: 1.0` is there for a stage that may settle negatives alone."""
    asked = policy({"s0": {"q": rule("a", 1.0) | {"combine": combine}}})
    for scores, answer in (
        (1.0, Answer.REVIEW),
        (math.inf, Answer.REVIEW),
        (0.1, Answer.NEGATIVE),
        (0.0, Answer.NEGATIVE),
    ):
        models = FakeModels(s0=scripted("s0", *[{"a": scores}] * 3))
        (verdict,) = run_cascade(asked, numbered(3), models).verdicts
        assert verdict.answer is answer


@pytest.mark.parametrize("combine", [None, {"at_least": 2}, "mean"])
def test_a_picture_that_a_model_cannot_read_is_a_doubt_and_its_document_is_json(combine: Any) -> None:
    asked = policy({"s0": {"q": rule("a") | {"combine": combine}}})
    models = FakeModels(s0=scripted("s0", {"a": 0.1}, {"a": math.nan}, {"a": 0.1}))
    outcome = run_cascade(asked, numbered(3), models)
    (verdict,) = outcome.verdicts
    assert verdict.answer is (Answer.NEGATIVE if combine == {"at_least": 2} else Answer.REVIEW)
    assert verdict.score == (0.1 if combine == {"at_least": 2} else 0.5)
    assert outcome.stages[0].scores["q"] == {0: 0.1, 1: 0.5, 2: 0.1}


def test_crops_of_which_one_cannot_be_read_leave_their_keyframe_in_doubt() -> None:
    seen = [(View(numbered(1)[0]), Findings((Detection("a", 0.9),))), (View(numbered(1)[0]), Findings((), False))]
    assert merged(seen[:1]).score(["a"]) == 0.9
    assert math.isnan(merged(seen).score(["a"]))


@pytest.mark.parametrize(("seen", "answer"), [({}, Answer.NEGATIVE), ({"a": 0.01}, Answer.REVIEW)])
def test_a_negative_at_of_nothing_takes_what_was_not_found_at_all(seen: dict[str, float], answer: Answer) -> None:
    asked = policy({"s0": {"q": rule("a", 0.8, 0.0)}})
    (verdict,) = run_cascade(asked, numbered(1), FakeModels(s0=scripted("s0", seen))).verdicts
    assert verdict.answer is answer


def test_keyframes_are_looked_at_until_enough_said_yes() -> None:
    _, models = judged({"at_least": 2}, (0.1, 0.9, 0.85, 0.9, 0.9))
    assert models.calls == {"s0": [[0], [1], [2]]}
    _, models = judged("mean", (1.0, 1.0, 1.0))
    assert models.calls == {"s0": [[0], [1], [2]]}


def test_a_yes_of_an_earlier_stage_counts_in_a_later_one_that_sees_only_the_doubtful() -> None:
    outcome, models = judged({"at_least": 2}, (0.9, 0.5, 0.1, 0.6), (0.0, 0.1, 0.0, 0.95))
    assert models.calls["s1"] == [[1], [3]]
    (verdict,) = outcome.verdicts
    assert (verdict.answer, verdict.evidence, verdict.stage) == (Answer.POSITIVE, (0, 3), "s1")


def test_a_later_stage_can_take_the_hope_away() -> None:
    outcome, _ = judged({"at_least": 2}, (0.9, 0.5, 0.1, 0.6), (0.0, 0.1, 0.0, 0.2))
    (verdict,) = outcome.verdicts
    assert (verdict.answer, verdict.evidence) == (Answer.NEGATIVE, (0, 1, 3))


def test_a_mean_in_doubt_sends_every_keyframe_on() -> None:
    outcome, models = judged("mean", (0.9, 0.1), (0.1, 0.1))
    assert models.calls["s1"] == [[0], [1]]
    assert outcome.verdicts[0].answer is Answer.NEGATIVE


def test_thresholds_are_applied_to_calibrated_scores() -> None:
    sure = rule("a") | {"calibration": [[0.0, 0.0], [0.5, 0.9], [1.0, 1.0]]}
    models = FakeModels(cheap=scripted("cheap", {"a": 0.5}))
    outcome = run_cascade(policy({"cheap": {"q": sure}}), numbered(1), models)
    (verdict,) = outcome.verdicts
    assert verdict.answer is Answer.POSITIVE
    assert verdict.score == pytest.approx(0.9)
    assert outcome.stages[0].scores["q"][0] == pytest.approx(0.9)
    assert outcome.stages[0].findings[0].detections[0].score == 0.5  # what the model said


scores = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(scores, st.integers(1, 5))
def test_counting_agrees_with_its_definition(values: list[float], needed: int) -> None:
    outcome, _ = judged({"at_least": needed}, tuple(values))
    enough = min(needed, len(values))
    yes, no = sum(v >= 0.8 for v in values), sum(v <= 0.2 for v in values)
    expected = Answer.POSITIVE if yes >= enough else Answer.NEGATIVE if len(values) - no < enough else Answer.REVIEW
    assert outcome.verdicts[0].answer is expected


@given(scores, st.integers(1, 5), st.floats(0.3, 1.0))
def test_a_higher_bar_never_makes_more_videos_positive(values: list[float], needed: int, bar: float) -> None:
    answers = []
    for positive_at in sorted((bar, 0.8)):
        asked = policy({"s": {"q": rule("a", positive_at) | {"combine": {"at_least": needed}}}})
        models = FakeModels(s=scripted("s", *({"a": value} for value in values)))
        answers.append(run_cascade(asked, numbered(len(values)), models).verdicts[0].answer)
    assert (answers[1] is Answer.POSITIVE) <= (answers[0] is Answer.POSITIVE)
