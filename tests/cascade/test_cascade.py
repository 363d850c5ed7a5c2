from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cascade.cascade import run_cascade, unasked_verdict
from pipeline.cascade.policy import Policy
from pipeline.cascade.ports import Models
from pipeline.detections import Detection, Findings, Scored
from pipeline.errors import FatalError, Reason, TransientError, UserError
from pipeline.verdict import Answer, CascadeOutcome, Doubt, RunState
from tests.cascade.fakes import FakeModels, FakeScorer, document, numbered, policy, rule, scripted, sha, vlm

ONE = policy({"cheap": {"q": rule("a")}})
TWO = policy({"cheap": {"q": rule("a")}, "dear": {"q": rule("b", 0.9, 0.1)}})


def test_a_fake_is_a_models_port() -> None:
    port: Models = FakeModels(cheap=scripted("cheap", {}))
    assert port.scorer("cheap").weights_sha256 == sha("cheap")


def scores(*values: float, model: str = "cheap", label: str = "a", batch_size: int = 1) -> FakeScorer:
    return scripted(model, *({label: value} for value in values), batch_size=batch_size)


def one(*values: float, coverage: float = 1.0) -> CascadeOutcome:
    return run_cascade(ONE, numbered(len(values)), FakeModels(cheap=scores(*values)), coverage=coverage)


@pytest.mark.parametrize(
    ("values", "answer", "evidence"),
    [
        ((0.1, 0.9, 0.0), Answer.POSITIVE, (1,)),
        ((0.1, 0.2, 0.0), Answer.NEGATIVE, (0, 1, 2)),
        ((0.1, 0.5, 0.3), Answer.REVIEW, (1, 2)),
        ((0.5, 0.1, 0.9), Answer.POSITIVE, (2,)),
        ((0.8,), Answer.POSITIVE, (0,)),  # both thresholds belong to their side
        ((0.2,), Answer.NEGATIVE, (0,)),
        ((math.nextafter(0.8, 0),), Answer.REVIEW, (0,)),
        ((math.nextafter(0.2, 1),), Answer.REVIEW, (0,)),
    ],
)
def test_one_stage_answers_positive_negative_or_leaves_it_to_a_person(
    values: tuple[float, ...], answer: Answer, evidence: tuple[int, ...]
) -> None:
    outcome = one(*values)
    (verdict,) = outcome.verdicts
    assert (verdict.answer, verdict.evidence) == (answer, evidence)
    assert verdict.stage == ("review" if answer is Answer.REVIEW else "cheap")
    assert verdict.reason is (Reason.UNDECIDED if answer is Answer.REVIEW else None)
    assert outcome.state is (RunState.IN_REVIEW if answer is Answer.REVIEW else RunState.DECIDED)


def test_a_verdict_carries_all_that_accounts_for_it() -> None:
    (verdict,) = one(0.9).verdicts
    assert (verdict.question, verdict.score, verdict.model) == ("q", 0.9, "cheap")
    assert (verdict.weights_sha256, verdict.policy, verdict.owner) == (sha("cheap"), "test", "team")
    assert verdict.decision_hash == ONE.decision_hash


def test_a_label_that_was_not_seen_scores_zero() -> None:
    models = FakeModels(cheap=scripted("cheap", {"c": 0.99}, {}))
    (verdict,) = run_cascade(ONE, numbered(2), models).verdicts
    assert (verdict.answer, verdict.score) == (Answer.NEGATIVE, 0.0)


def test_the_best_of_several_labels_counts() -> None:
    asked = policy({"cheap": {"q": rule("ab")}})
    (verdict,) = run_cascade(asked, numbered(1), FakeModels(cheap=scripted("cheap", {"a": 0.1, "b": 0.85}))).verdicts
    assert (verdict.answer, verdict.score) == (Answer.POSITIVE, 0.85)


def test_a_settled_question_neither_loads_nor_calls_a_later_model() -> None:
    for value in (0.9, 0.1):
        models = FakeModels(cheap=scores(value), dear=scores(model="dear"))
        outcome = run_cascade(TWO, numbered(1), models)
        assert models.loaded == [("cheap", None)]
        assert [record.stage for record in outcome.stages] == ["cheap"]


def test_keyframes_are_not_scored_once_every_question_of_the_stage_is_positive() -> None:
    models = FakeModels(cheap=scores(0.1, 0.95, 0.99, 0.99))
    outcome = run_cascade(ONE, numbered(4), models)
    assert models.calls == {"cheap": [[0], [1]]}
    assert sorted(outcome.stages[0].findings) == [0, 1]


def test_only_doubtful_keyframes_go_on_and_the_later_stage_may_settle_them() -> None:
    models = FakeModels(cheap=scores(0.0, 0.5, 0.1, 0.7), dear=scripted("dear", {}, {"b": 0.05}, {}, {"b": 0.1}))
    outcome = run_cascade(TWO, numbered(4), models)
    assert models.calls == {"cheap": [[0], [1], [2], [3]], "dear": [[1], [3]]}
    (verdict,) = outcome.verdicts
    assert (verdict.answer, verdict.stage, verdict.model) == (Answer.NEGATIVE, "dear", "dear")
    assert verdict.evidence == (1, 3)
    assert [(record.asked, record.settled) for record in outcome.stages] == [(("q",), ()), (("q",), ("q",))]


def test_what_the_last_stage_doubts_goes_to_a_person_with_its_score_and_evidence() -> None:
    models = FakeModels(cheap=scores(0.5, 0.6), dear=scripted("dear", {"b": 0.05}, {"b": 0.4}))
    (verdict,) = run_cascade(TWO, numbered(2), models).verdicts
    assert (verdict.answer, verdict.stage, verdict.model, verdict.score) == (Answer.REVIEW, "review", "dear", 0.4)
    assert (verdict.evidence, verdict.reason) == ((1,), Reason.UNDECIDED)


@pytest.mark.parametrize(
    ("batch_size", "calls"),
    [(1, [[0], [1], [2], [3], [4]]), (2, [[0, 1], [2, 3], [4]]), (3, [[0, 1, 2], [3, 4]]), (9, [[0, 1, 2, 3, 4]])],
)
def test_keyframes_are_scored_in_batches_of_the_devices_size(batch_size: int, calls: list[list[int]]) -> None:
    models = FakeModels(cheap=scores(*[0.1] * 5, batch_size=batch_size))
    outcome = run_cascade(ONE, numbered(5), models)
    assert models.calls == {"cheap": calls}
    assert outcome.stages[0].cpu_s == pytest.approx(0.25 * 5)
    assert outcome.stages[0].money_nano == 1_250_000


def test_all_positives_of_the_batch_that_settled_it_are_evidence() -> None:
    (verdict,) = run_cascade(ONE, numbered(4), FakeModels(cheap=scores(0.9, 0.1, 0.95, 0.99, batch_size=3))).verdicts
    assert (verdict.evidence, verdict.score) == ((0, 2), 0.95)


def test_questions_that_share_a_stage_are_answered_by_the_same_calls() -> None:
    asked = policy({"cheap": {"p": rule("a"), "q": rule("b"), "r": rule("c")}})
    models = FakeModels(cheap=scripted("cheap", {"a": 0.9}, {"b": 0.5}, {"a": 0.1, "b": 0.1, "c": 0.2}))
    outcome = run_cascade(asked, numbered(3), models)
    assert models.calls == {"cheap": [[0], [1], [2]]}
    assert [verdict.answer for verdict in outcome.verdicts] == [Answer.POSITIVE, Answer.REVIEW, Answer.NEGATIVE]
    assert [verdict.evidence for verdict in outcome.verdicts] == [(0,), (1,), (0, 1, 2)]
    assert outcome.stages[0].settled == ("p", "r")


def test_a_question_skips_a_stage_that_does_not_answer_it() -> None:
    asked = policy({"cheap": {"p": rule("a")}, "dear": {"q": rule("b")}})
    models = FakeModels(cheap=scores(0.9, 0.1), dear=scripted("dear", {"b": 0.1}, {"b": 0.9}))
    outcome = run_cascade(asked, numbered(2), models)
    assert models.calls == {"cheap": [[0]], "dear": [[0], [1]]}
    assert [(v.question, v.answer, v.stage) for v in outcome.verdicts] == [
        ("p", Answer.POSITIVE, "cheap"),
        ("q", Answer.POSITIVE, "dear"),
    ]


def test_a_stage_scores_the_doubtful_keyframes_of_all_its_open_questions_once() -> None:
    both = {"p": rule("a"), "q": rule("b")}
    asked = policy({"cheap": both, "dear": both})
    models = FakeModels(
        cheap=scripted("cheap", {"a": 0.5}, {"b": 0.5}, {}), dear=scripted("dear", {"b": 0.9}, {"a": 0.9}, {})
    )
    outcome = run_cascade(asked, numbered(3), models)
    assert models.calls["dear"] == [[0], [1]]
    assert [v.answer for v in outcome.verdicts] == [Answer.NEGATIVE, Answer.NEGATIVE]  # each on its own keyframes


def test_verdicts_come_in_the_policys_order_and_the_input_size_reaches_the_model() -> None:
    stage = {"name": "s", "model": "cheap", "input_px": 320, "answers": {"p": rule("a"), "q": rule("b")}}
    text = document({"cheap": {"p": rule("a"), "q": rule("b")}})
    text["decision"] |= {"questions": {"q": {"text": "?"}, "p": {"text": "?"}}, "stages": [stage]}
    asked = Policy.model_validate(text)
    models = FakeModels(cheap=scripted("cheap", {}))
    outcome = run_cascade(asked, numbered(1), models)
    assert [verdict.question for verdict in outcome.verdicts] == ["q", "p"]
    assert models.loaded == [("cheap", 320)]


def test_without_keyframes_nothing_is_negative_and_no_model_is_loaded() -> None:
    for coverage in (0.0, 1.0):
        models = FakeModels(cheap=scores(), dear=scores(model="dear"))
        outcome = run_cascade(TWO, [], models, coverage=coverage)
        (verdict,) = outcome.verdicts
        assert (verdict.answer, verdict.stage, verdict.model) == (Answer.REVIEW, "review", None)
        assert (verdict.weights_sha256, verdict.evidence, verdict.reason) == (None, (), Reason.UNDECIDED)
        assert outcome.state is RunState.IN_REVIEW
        assert (models.loaded, outcome.stages) == ([], ())


@pytest.mark.parametrize(
    ("coverage", "answer"),
    [(0.5, Answer.NEGATIVE), (0.49, Answer.REVIEW), (0.0, Answer.REVIEW), (float("nan"), Answer.REVIEW)],
)
def test_a_negative_on_too_little_of_the_video_goes_to_a_person(coverage: float, answer: Answer) -> None:
    (verdict,) = one(0.1, coverage=coverage).verdicts
    assert verdict.answer is answer
    if answer is Answer.REVIEW:
        assert (verdict.stage, verdict.model, verdict.reason) == ("review", "cheap", Reason.LOW_COVERAGE)


def test_a_positive_stands_however_little_was_seen() -> None:
    (verdict,) = one(0.9, coverage=0.01).verdicts
    assert (verdict.answer, verdict.reason) == (Answer.POSITIVE, None)


def test_a_score_that_is_no_number_never_makes_a_negative() -> None:
    (verdict,) = one(float("nan")).verdicts
    assert verdict.answer is Answer.REVIEW


def test_other_weights_than_the_pinned_ones_are_fatal_before_anything_is_scored() -> None:
    altered = replace(scores(0.9), weights_sha256="f" * 64)
    with pytest.raises(FatalError, match=r"'test' pins cheap to SHA-256 .*: pin that one") as caught:
        run_cascade(ONE, numbered(1), FakeModels(cheap=altered))
    assert caught.value.reason is Reason.BAD_POLICY
    assert altered.calls == []


def test_a_label_that_the_model_does_not_know_is_fatal_not_never_seen() -> None:
    ignorant = replace(scores(0.9), labels=("x", "y"))
    with pytest.raises(FatalError, match=r"stage 'cheap', question 'q': model cheap has no label a; it has x, y"):
        run_cascade(ONE, numbered(1), FakeModels(cheap=ignorant))
    assert ignorant.calls == []


def test_what_the_models_raise_passes_through() -> None:
    class Broken(FakeScorer):
        def score(self, images: object) -> Scored:
            raise TransientError(Reason.MODEL_UNAVAILABLE, "device lost")

    with pytest.raises(TransientError, match="device lost"):
        run_cascade(ONE, numbered(1), FakeModels(cheap=Broken([], sha("cheap"), ("a",))))


def test_a_model_that_answers_for_too_few_images_is_not_believed() -> None:
    class Short(FakeScorer):
        def score(self, images: object) -> Scored:
            return Scored((Findings((Detection("a", 0.1),)),), 0.1)

    with pytest.raises(ValueError, match="zip"):
        run_cascade(ONE, numbered(2), FakeModels(cheap=Short([], sha("cheap"), ("a",), batch_size=2)))


levels = st.sampled_from([0.0, 0.1, 0.2, 0.21, 0.5, 0.79, 0.8, 0.9, 1.0])
frames = st.lists(st.fixed_dictionaries({"a": levels, "b": levels}), min_size=0, max_size=6)


@given(st.data(), frames, st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.2, 1.0]))
def test_every_question_gets_one_verdict_and_it_is_positive_exactly_where_a_stage_saw_it(
    data: st.DataObject, cheap: list[dict[str, float]], first_batch: int, second_batch: int, coverage: float
) -> None:
    dear = data.draw(st.lists(frames.filter(bool).map(lambda f: f[0]), min_size=len(cheap), max_size=len(cheap)))
    both = {"p": rule("a"), "q": rule("b")}
    asked = policy({"cheap": both, "dear": both})
    models = FakeModels(
        cheap=scripted("cheap", *cheap, batch_size=first_batch), dear=scripted("dear", *dear, batch_size=second_batch)
    )
    outcome = run_cascade(asked, numbered(len(cheap)), models, coverage=coverage)
    assert [verdict.question for verdict in outcome.verdicts] == ["p", "q"]
    for verdict, label in zip(outcome.verdicts, "ab", strict=True):
        first = [frame[label] for frame in cheap]
        doubtful = [index for index, score in enumerate(first) if 0.2 < score < 0.8]
        reached = [first] if max(first, default=0) >= 0.8 else [first, [dear[index][label] for index in doubtful]]
        positive = any(score >= 0.8 for stage in reached for score in stage)
        assert (verdict.answer is Answer.POSITIVE) == positive
        negative = bool(first) and not positive and all(score <= 0.2 for score in reached[-1])
        assert (verdict.answer is Answer.NEGATIVE) == (negative and coverage >= 0.5)
        assert all(0 <= index < len(cheap) for index in verdict.evidence)
        assert list(verdict.evidence) == sorted(set(verdict.evidence))
    for record in outcome.stages:
        asked_images = [number for call in models.scorers[record.model].calls for number in call]
        assert len(asked_images) == len(set(asked_images))  # no keyframe is paid for twice
        assert all(len(call) <= models.scorers[record.model].batch_size for call in models.scorers[record.model].calls)


def test_numbered_images_carry_their_index() -> None:
    assert [int(np.max(image)) for image in numbered(3)] == [0, 1, 2]


def test_each_stage_says_how_the_keyframes_in_doubt_scored_for_each_question() -> None:
    models = FakeModels(
        cheap=scripted("cheap", {"a": 0.1}, {"a": 0.5}, {"a": 0.3}), dear=scripted("dear", {}, {"b": 0.4}, {"b": 0.05})
    )
    outcome = run_cascade(TWO, numbered(3), models)
    cheap, dear = outcome.stages
    assert cheap.scores == {"q": {0: 0.1, 1: 0.5, 2: 0.3}}
    assert dear.scores == {"q": {1: 0.4, 2: 0.05}}


def with_vlm(**answers: Any) -> Policy:
    text = document({"cheap": {"p": rule("a"), "q": rule("b")}}, vlm=vlm("q", "r"))
    text["decision"]["questions"]["r"] = {"text": "Is there r?"}
    text["decision"]["vlm"]["answers"]["q"] |= answers
    return Policy.model_validate(text)


def test_what_the_stages_leave_in_doubt_and_the_vlm_answers_is_escalated_with_its_keyframes() -> None:
    models = FakeModels(cheap=scripted("cheap", {"a": 0.5, "b": 0.1}, {"b": 0.5}, {"b": 0.6}))
    outcome = run_cascade(with_vlm(), numbered(3), models)
    assert outcome.doubts == (Doubt("q", (1, 2)), Doubt("r", (0, 1, 2)))  # r is the VLM's alone
    assert outcome.state is RunState.ESCALATED
    assert {v.question: (v.answer, v.reason) for v in outcome.verdicts} == {
        "p": (Answer.REVIEW, Reason.UNDECIDED),
        "q": (Answer.REVIEW, Reason.NO_VLM),
        "r": (Answer.REVIEW, Reason.NO_VLM),
    }
    assert outcome.without_doubts().state is RunState.IN_REVIEW


def test_without_keyframes_there_is_nothing_to_show_a_vlm() -> None:
    outcome = run_cascade(with_vlm(), [], FakeModels())
    assert (outcome.doubts, outcome.state) == ((), RunState.IN_REVIEW)


@pytest.mark.parametrize(("answer", "stage"), [(Answer.REVIEW, "review"), (Answer.OPEN, "judge")])
def test_where_a_vlm_is_not_asked_the_score_stays_that_of_the_stages_before(answer: Answer, stage: str) -> None:
    asked = with_vlm(calibration=[[0, 0], [1, 0.7]])
    verdict = unasked_verdict(asked, "q", answer, Reason.BUDGET_EXHAUSTED, score=0.6, evidence=[1])
    assert (verdict.answer, verdict.reason, verdict.score) == (answer, Reason.BUDGET_EXHAUSTED, 0.6)
    assert (verdict.stage, verdict.model, verdict.weights_sha256, verdict.evidence) == (
        stage,
        "Org/Model-7B",
        None,
        (1,),
    )
    assert (verdict.decision_hash, verdict.owner) == (asked.decision_hash, "team")
    with pytest.raises(ValueError, match="does not ask a VLM about 'p'"):
        unasked_verdict(asked, "p", answer, Reason.BUDGET_EXHAUSTED, score=0.6, evidence=[])


def test_a_model_that_is_read_in_another_way_than_the_policy_pins_is_refused() -> None:
    pinned = document({"cheap": {"q": rule("a")}})
    pinned["decision"]["models"]["cheap"] = {"weights": sha("cheap"), "reading": sha("reading")}
    asked = Policy.model_validate(pinned)
    models = FakeModels(cheap=scores(0.1))
    with pytest.raises(UserError, match="pins how cheap is read") as caught:
        run_cascade(asked, numbered(1), models)
    assert caught.value.reason is Reason.BAD_POLICY
    models.scorers["cheap"].reading_sha256 = sha("reading")
    assert run_cascade(asked, numbered(1), models).verdicts[0].answer is Answer.NEGATIVE
