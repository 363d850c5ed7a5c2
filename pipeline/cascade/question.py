"""One question on its way through the stages: which keyframes are a yes, which are in doubt, and the answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.cascade.policy import StagePart
from pipeline.cascade.rules import AnswerRule
from pipeline.detections import Findings
from pipeline.verdict import Answer

UNKNOWN = 0.5
"""What is told of a score that is none: neither yes nor no. Thresholds are held against the NaN itself."""


@dataclass(slots=True)
class OpenQuestion:
    """`doubtful` are the keyframes still in doubt, `yes` those that said yes (with their scores) without settling it.

    `keyframes` is how many the video has; `stage` the last one that tried, `score` what it made of them.
    """

    name: str
    keyframes: int
    doubtful: tuple[int, ...] = ()
    yes: dict[int, float] = field(default_factory=dict)
    score: float = 0.0
    stage: StagePart | None = None
    answer: Answer = Answer.REVIEW
    evidence: tuple[int, ...] = ()

    @classmethod
    def about(cls, name: str, keyframes: int) -> OpenQuestion:
        return cls(name, keyframes, tuple(range(keyframes)))

    @property
    def is_open(self) -> bool:
        return self.answer is Answer.REVIEW

    @property
    def wants_models(self) -> bool:
        """Whether a model could still settle it: without keyframes only a person can."""
        return self.is_open and bool(self.doubtful)

    def unseen(self, rule: AnswerRule, findings: Mapping[int, Findings]) -> set[int]:
        """The keyframes that have yet to be looked at; none once those that were make it positive."""
        if rule.combine != "mean" and len(self._yes(rule, self._scores(rule, findings))) >= self._needed(rule):
            return set()
        return {index for index in self.doubtful if index not in findings}

    def settle(self, stage: StagePart, findings: Mapping[int, Findings]) -> dict[int, float]:
        """Answer it, or narrow its doubt down; returns the (calibrated) scores that did it, `UNKNOWN` for none."""
        rule = stage.answers[self.name]
        scores = self._scores(rule, findings)
        self.stage = stage
        if rule.combine == "mean":
            self._settle_by_mean(rule, scores)
        else:
            self._settle_by_count(rule, scores)
        return {index: _known(score) for index, score in scores.items()}

    def _settle_by_count(self, rule: AnswerRule, scores: Mapping[int, float]) -> None:
        yes, needed = self._yes(rule, scores), self._needed(rule)
        doubtful = tuple(
            index for index, score in scores.items() if index not in yes and not rule.is_no(score)
        )  # NaN is doubtful
        ranked = sorted(map(_known, {**yes, **scores}.values()), reverse=True)
        self.score = ranked[min(needed, len(ranked)) - 1] if ranked else 0.0
        if len(yes) >= needed:
            self.answer, self.evidence = Answer.POSITIVE, tuple(sorted(yes))
        elif len(yes) + len(doubtful) < needed:
            self.answer, self.evidence = Answer.NEGATIVE, tuple(sorted({*yes, *scores}))
        else:
            self.yes, self.doubtful, self.evidence = yes, doubtful, tuple(sorted({*yes, *doubtful}))

    def _settle_by_mean(self, rule: AnswerRule, scores: Mapping[int, float]) -> None:
        mean = math.fsum(scores.values()) / len(scores)
        self.score, self.evidence = _known(mean), tuple(scores)
        if rule.is_yes(mean):
            self.answer = Answer.POSITIVE
            self.evidence = tuple(index for index, score in scores.items() if score >= mean) or tuple(scores)
        elif rule.is_no(mean):
            self.answer = Answer.NEGATIVE

    def _scores(self, rule: AnswerRule, findings: Mapping[int, Findings]) -> dict[int, float]:
        return {
            index: rule.calibrated(findings[index].score(rule.labels)) for index in self.doubtful if index in findings
        }

    def _yes(self, rule: AnswerRule, scores: Mapping[int, float]) -> dict[int, float]:
        return self.yes | {index: score for index, score in scores.items() if rule.is_yes(score)}

    def _needed(self, rule: AnswerRule) -> int:
        return min(rule.yes_needed, self.keyframes)


def _known(score: float) -> float:
    return UNKNOWN if math.isnan(score) else score
