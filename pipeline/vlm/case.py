"""What screening left open about one video, read back from its result document. Pure.

The document is the run's whole state: pictures, findings, scores. Of all that a document holds only numbers and labels
that the policy itself names go any further: no file name, no metadata and no text of the uploader's reaches the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cascade.policy import Policy
from pipeline.cascade.rules import Thresholds

Document = Mapping[str, Any]

LEAST_NOTED = 0.05
"""A finding below this is no news to the model."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """One open question: the keyframes that are in doubt, and what the stages before made of it.

    `lean` is how far the cheap stage that leans most to yes is on its way from `negative_at` (0) to `positive_at` (1);
    None where no stage before was asked.
    """

    question: str
    keyframes: tuple[int, ...]
    score: float
    lean: float | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One keyframe. `notes` says in words what the cheap stages found in it; `interest` is their best score."""

    index: int
    t_s: float
    width_px: int
    height_px: int
    image: str
    notes: str
    interest: float


@dataclass(frozen=True, slots=True)
class Case:
    """All that a VLM is asked about one video."""

    open: tuple[OpenQuestion, ...]
    frames: dict[int, Frame]
    coverage: float

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(doubt.question for doubt in self.open)


def case_of(policy: Policy, document: Document) -> Case:
    """Raises KeyError, TypeError or ValueError for a document that is none of ours."""
    answers = policy.decision.vlm.answers if policy.decision.vlm else {}
    keyframes, stages = document["keyframes"], document["stages"]
    scores = {str(verdict["question"]): float(verdict["score"]) for verdict in document["verdicts"]}
    doubtful = {str(doubt["question"]): tuple(map(int, doubt["keyframes"])) for doubt in document["doubts"]}
    open_ = tuple(
        OpenQuestion(
            question, _of_video(doubtful[question], len(keyframes)), scores[question], _lean(policy, question, stages)
        )
        for question in answers
        if question in doubtful
    )
    wanted = sorted({index for question in open_ for index in question.keyframes})
    labels = _labels(policy, tuple(question.question for question in open_))
    frames = {index: _frame(index, keyframes[index], stages, labels) for index in wanted}
    return Case(open_, frames, float(document["coverage"]))


def _of_video(keyframes: tuple[int, ...], count: int) -> tuple[int, ...]:
    if not keyframes or not all(0 <= index < count for index in keyframes):
        raise ValueError(f"doubts about keyframes {keyframes} of {count}")
    return keyframes


def _lean(policy: Policy, question: str, stages: Sequence[Mapping[str, Any]]) -> float | None:
    leans = [
        _on_the_way(rule, max(float(scored["score"]) for scored in scores))
        for stage in stages
        if (rule := _rule(policy, str(stage["stage"]), question)) and (scores := stage["scores"].get(question))
    ]
    return max(leans, default=None)


def _rule(policy: Policy, stage: str, question: str) -> Thresholds | None:
    return next((part.answers.get(question) for part in policy.decision.stages if part.name == stage), None)


def _on_the_way(rule: Thresholds, score: float) -> float:
    """The share of the way from `negative_at` to `positive_at`; scores in documents are calibrated already."""
    return min(1.0, max(0.0, (score - rule.negative_at) / (rule.positive_at - rule.negative_at)))


def _labels(policy: Policy, questions: Sequence[str]) -> dict[str, frozenset[str]]:
    """Stage → the labels that it answers `questions` from."""
    return {
        stage.name: frozenset(
            label for question in questions if question in stage.answers for label in stage.answers[question].labels
        )
        for stage in policy.decision.stages
    }


def _frame(
    index: int,
    keyframe: Mapping[str, Any],
    stages: Sequence[Mapping[str, Any]],
    labels: Mapping[str, frozenset[str]],
) -> Frame:
    width_px, height_px = (int(side) for side in keyframe["size_px"])
    best: dict[tuple[str, str], float] = {}
    for stage in stages:
        name = str(stage["stage"])
        for found in stage["findings"]:
            for detection in found["detections"] if found["keyframe"] == index else ():
                label, score = str(detection["label"]), float(detection["score"])
                if label in labels.get(name, ()) and score >= LEAST_NOTED:
                    best[name, label] = max(score, best.get((name, label), 0.0))
    notes = ", ".join(f"{stage} {label} {score:.2f}" for (stage, label), score in sorted(best.items()))
    return Frame(
        index,
        float(keyframe["t_s"]),
        width_px,
        height_px,
        str(keyframe["image"]),
        notes,
        max(best.values(), default=0.0),
    )
