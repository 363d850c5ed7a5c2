"""The cascade: ordered stages, each asked only what the ones before it left in doubt. Pure but for the port.

For every question: positive when any keyframe scores at least `positive_at`; negative when all score at most
`negative_at`; else the doubtful keyframes go to the next stage that answers the question, and after the last one
to a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.cascade.cost import nano
from pipeline.cascade.policy import Policy, StagePart
from pipeline.cascade.ports import Models, Scorer
from pipeline.detections import Findings
from pipeline.errors import Reason, UserError
from pipeline.media import BgrImage
from pipeline.verdict import Answer, CascadeOutcome, StageRecord, Verdict


@dataclass(slots=True)
class _OpenQuestion:
    """A question on its way: the keyframes still in doubt, and what the last stage made of them."""

    name: str
    doubtful: tuple[int, ...]
    score: float = 0.0
    stage: StagePart | None = None
    answer: Answer = Answer.REVIEW
    evidence: tuple[int, ...] = field(default=())

    @property
    def is_open(self) -> bool:
        return self.answer is Answer.REVIEW

    @property
    def wants_models(self) -> bool:
        """Whether a model could still settle it: without keyframes only a person can."""
        return self.is_open and bool(self.doubtful)


def run_cascade(policy: Policy, images: Sequence[BgrImage], models: Models, *, coverage: float = 1.0) -> CascadeOutcome:
    """Verdicts on `images`, the keyframes of one video of which the share `coverage` could be looked at.

    A model is neither loaded nor called unless an open question needs it. Raises UserError(BAD_POLICY) when the
    policy names labels or weights that a model does not have, and what `models` raises. Without any images every
    question goes to a person: nothing was seen, which is not a negative.
    """
    questions = {name: _OpenQuestion(name, tuple(range(len(images)))) for name in policy.decision.questions}
    records: list[StageRecord] = []
    for stage in policy.decision.stages:
        asked = [questions[name] for name in stage.answers if questions[name].wants_models]
        if asked:
            scorer = load_scorer(models, stage, policy)
            records.append(_run_stage(policy, stage, scorer, asked, images))
    return CascadeOutcome(
        verdicts=tuple(_verdict(policy, question, coverage) for question in questions.values()),
        stages=tuple(records),
    )


def _run_stage(
    policy: Policy,
    stage: StagePart,
    scorer: Scorer,
    asked: Sequence[_OpenQuestion],
    images: Sequence[BgrImage],
) -> StageRecord:
    findings: dict[int, Findings] = {}
    cpu_s = 0.0
    for batch in _batches(asked, stage, findings, scorer.batch_size):
        scored = scorer.score([images[index] for index in batch])
        findings.update(zip(batch, scored.findings, strict=True))
        cpu_s += scored.cpu_s
    scores = {question.name: _settle(question, stage, findings) for question in asked}
    return StageRecord(
        stage=stage.name,
        model=stage.model,
        weights_sha256=scorer.weights_sha256,
        asked=tuple(question.name for question in asked),
        settled=tuple(question.name for question in asked if not question.is_open),
        findings=findings,
        scores=scores,
        cpu_s=cpu_s,
        money_nano=nano(policy.commercial.prices.cpu_second, cpu_s),
    )


def _batches(
    asked: Sequence[_OpenQuestion], stage: StagePart, findings: dict[int, Findings], batch_size: int
) -> Iterator[list[int]]:
    """The keyframes still worth looking at, batch by batch: those of questions that are not yet positive."""
    while True:
        needed = {
            index
            for question in asked
            if not _positives(question, stage, findings)
            for index in question.doubtful
            if index not in findings
        }
        if not needed:
            return
        yield sorted(needed)[:batch_size]


def _positives(question: _OpenQuestion, stage: StagePart, findings: dict[int, Findings]) -> list[int]:
    rule = stage.answers[question.name]
    return [
        index
        for index in question.doubtful
        if index in findings and findings[index].score(rule.labels) >= rule.positive_at
    ]


def _settle(question: _OpenQuestion, stage: StagePart, findings: dict[int, Findings]) -> dict[int, float]:
    """Answer `question`, or narrow its doubt down; the scores that did it."""
    rule = stage.answers[question.name]
    scores = {i: findings[i].score(rule.labels) for i in question.doubtful if i in findings}
    question.stage = stage
    question.score = max(scores.values(), default=0.0)
    if positives := _positives(question, stage, findings):
        question.answer = Answer.POSITIVE
        question.evidence = tuple(positives)
    elif doubtful := tuple(i for i, score in scores.items() if not score <= rule.negative_at):  # NaN is doubtful
        question.doubtful = doubtful
        question.evidence = doubtful
    elif scores:
        question.answer = Answer.NEGATIVE
        question.evidence = tuple(scores)
    return scores


def _verdict(policy: Policy, question: _OpenQuestion, coverage: float) -> Verdict:
    answer, reason = question.answer, Reason.UNDECIDED if question.is_open else None
    if answer is Answer.NEGATIVE and not coverage >= policy.decision.min_coverage:  # NaN is not enough
        answer, reason = Answer.REVIEW, Reason.LOW_COVERAGE
    stage = question.stage
    return Verdict(
        question=question.name,
        answer=answer,
        score=question.score,
        stage="review" if answer is Answer.REVIEW or stage is None else stage.name,
        model=stage.model if stage else None,
        weights_sha256=policy.decision.models[stage.model].weights if stage else None,
        policy=policy.name,
        decision_hash=policy.decision_hash,
        owner=policy.commercial.owner,
        evidence=question.evidence,
        reason=reason,
    )


def load_scorer(models: Models, stage: StagePart, policy: Policy) -> Scorer:
    """The stage's model, which must be the one that the policy was written for.

    Raises UserError(BAD_POLICY) for other weights, and for a label that the model lacks: it would read as "never
    seen". And what `models` raises.
    """
    scorer = models.scorer(stage.model, stage.input_px)
    pinned = policy.decision.models[stage.model].weights
    if scorer.weights_sha256 != pinned:
        raise UserError(
            Reason.BAD_POLICY,
            f"policy '{policy.name}' pins {stage.model} to SHA-256 {pinned}, but the catalogue has "
            f"{scorer.weights_sha256}: pin that one in the policy, or install the pinned weights",
        )
    for question, rule in stage.answers.items():
        if unknown := sorted(set(rule.labels) - set(scorer.labels)):
            raise UserError(
                Reason.BAD_POLICY,
                f"policy '{policy.name}', stage '{stage.name}', question '{question}': model {stage.model} has no "
                f"label {', '.join(unknown)}; it has {', '.join(scorer.labels)}",
            )
    return scorer
