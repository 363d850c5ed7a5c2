"""The cascade: ordered stages, each asked only what the ones before it left in doubt. Pure but for the port.

A keyframe says yes, no, or is in doubt; `OpenQuestion` combines them. The doubtful keyframes of what is still open go
to the next stage that answers the question, after the last one to the policy's VLM, and then to a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.cascade.cost import nano
from pipeline.cascade.crops import View, merged, views
from pipeline.cascade.policy import Policy, StagePart
from pipeline.cascade.ports import Models, Scorer
from pipeline.cascade.question import OpenQuestion
from pipeline.cascade.rules import CropPart
from pipeline.detections import Findings
from pipeline.errors import Reason, UserError
from pipeline.media import BgrImage
from pipeline.verdict import Answer, CascadeOutcome, Doubt, StageRecord, Verdict

REVIEW_STAGE = "review"


def run_cascade(policy: Policy, images: Sequence[BgrImage], models: Models, *, coverage: float = 1.0) -> CascadeOutcome:
    """Verdicts on `images`, the keyframes of one video of which the share `coverage` could be looked at.

    A model is neither loaded nor called unless an open question needs it. Raises UserError(BAD_POLICY) when the
    policy names labels or weights that a model does not have, and what `models` raises. Without any images every
    question goes to a person: nothing was seen, which is not a negative.
    """
    questions = {name: OpenQuestion.about(name, len(images)) for name in policy.decision.questions}
    records: dict[str, StageRecord] = {}
    for stage in policy.decision.stages:
        asked = [questions[name] for name in stage.answers if questions[name].wants_models]
        if asked:
            scorer = load_scorer(models, stage, policy)
            pointed_at = records[stage.crop.stage].findings if stage.crop else {}
            records[stage.name] = _run_stage(policy, stage, scorer, asked, images, pointed_at)
    vlm = policy.decision.vlm.answers if policy.decision.vlm else {}
    doubts = [question for question in questions.values() if question.wants_models and question.name in vlm]
    return CascadeOutcome(
        verdicts=tuple(_verdict(policy, question, coverage) for question in questions.values()),
        stages=tuple(records.values()),
        doubts=tuple(Doubt(question.name, question.doubtful) for question in doubts),
    )


def _run_stage(
    policy: Policy,
    stage: StagePart,
    scorer: Scorer,
    asked: Sequence[OpenQuestion],
    images: Sequence[BgrImage],
    pointed_at: Mapping[int, Findings],
) -> StageRecord:
    findings: dict[int, Findings] = {}
    cpu_s, device_s, shown = 0.0, 0.0, 0
    while batch := _batch(stage, scorer.batch_size, asked, findings, images, pointed_at):
        scored = scorer.score([view.image for _, view in batch])
        seen = list(zip(batch, scored.findings, strict=True))
        for index in dict(batch):
            findings[index] = merged([(view, found) for (of, view), found in seen if of == index])
        cpu_s += scored.cpu_s
        device_s += scored.device_s
        shown += len(batch)
    prices = policy.commercial.prices
    scores = {question.name: question.settle(stage, findings) for question in asked}
    return StageRecord(
        stage=stage.name,
        model=stage.model,
        weights_sha256=scorer.weights_sha256,
        asked=tuple(question.name for question in asked),
        settled=tuple(question.name for question in asked if not question.is_open),
        findings=findings,
        scores=scores,
        cpu_s=cpu_s,
        money_nano=nano(prices.cpu_second, cpu_s) + nano(prices.device_second, device_s),
        images=shown,
        device_s=device_s,
    )


def _batch(
    stage: StagePart,
    size: int,
    asked: Sequence[OpenQuestion],
    findings: Mapping[int, Findings],
    images: Sequence[BgrImage],
    pointed_at: Mapping[int, Findings],
) -> list[tuple[int, View]]:
    """What the stage is shown of the next keyframes worth looking at: `size` views, or all of the last keyframe's."""
    needed = {index for question in asked for index in question.unseen(stage.answers[question.name], findings)}
    batch: list[tuple[int, View]] = []
    for index in sorted(needed):
        if len(batch) >= size:
            break
        batch += [(index, view) for view in views(images[index], stage.crop, pointed_at.get(index))]
    return batch


def _verdict(policy: Policy, question: OpenQuestion, coverage: float) -> Verdict:
    answer, reason = question.answer, None
    if question.is_open:
        vlm = policy.decision.vlm
        reason = Reason.NO_VLM if vlm and question.name in vlm.answers and question.doubtful else Reason.UNDECIDED
    elif answer is Answer.NEGATIVE and not coverage >= policy.decision.min_coverage:  # NaN is not enough
        answer, reason = Answer.REVIEW, Reason.LOW_COVERAGE
    stage = question.stage
    return Verdict(
        question=question.name,
        answer=answer,
        score=question.score,
        stage=REVIEW_STAGE if answer is Answer.REVIEW or stage is None else stage.name,
        model=stage.model if stage else None,
        weights_sha256=policy.decision.models[stage.model].weights if stage else None,
        policy=policy.name,
        decision_hash=policy.decision_hash,
        owner=policy.commercial.owner,
        evidence=question.evidence,
        reason=reason,
    )


def unasked_verdict(
    policy: Policy, question: str, answer: Answer, reason: Reason, *, score: float, evidence: Sequence[int]
) -> Verdict:
    """Where the VLM was not asked, or gave nothing, for `reason`: `answer` is for a person, or left open.

    `score` is what the stages before made of the question. Raises ValueError where the policy has no VLM for it.
    """
    vlm = policy.decision.vlm
    if vlm is None or question not in vlm.answers:
        raise ValueError(f"policy '{policy.name}' does not ask a VLM about '{question}'")
    return Verdict(
        question=question,
        answer=answer,
        score=score,
        stage=REVIEW_STAGE if answer is Answer.REVIEW else vlm.name,
        model=vlm.model,
        weights_sha256=None,
        policy=policy.name,
        decision_hash=policy.decision_hash,
        owner=policy.commercial.owner,
        evidence=tuple(evidence),
        reason=reason,
    )


def load_scorer(models: Models, stage: StagePart, policy: Policy) -> Scorer:
    """The stage's model, which must be the one that the policy was written for.

    Raises UserError(BAD_POLICY) for other weights or another way to read them, and for a label that the model lacks:
    it would read as "never seen". And what `models` raises.
    """
    scorer = models.scorer(stage.model, stage.input_px)
    pinned = policy.decision.models[stage.model]
    if scorer.weights_sha256 != pinned.weights:
        raise UserError(
            Reason.BAD_POLICY,
            f"policy '{policy.name}' pins {stage.model} to SHA-256 {pinned.weights}, but the catalogue has "
            f"{scorer.weights_sha256}: pin that one in the policy (`videosieve models pin {stage.model}` prints it), "
            "or install the pinned weights",
        )
    if pinned.reading not in (None, scorer.reading_sha256):
        raise UserError(
            Reason.BAD_POLICY,
            f"policy '{policy.name}' pins how {stage.model} is read to SHA-256 {pinned.reading}, but the catalogue's "
            f"entry (preprocessing, head, suppression) has {scorer.reading_sha256}: pin that one in the policy, or "
            "restore the entry",
        )
    for question, rule in stage.answers.items():
        _check_labels(policy, stage, f"question '{question}'", rule.labels, stage.model, scorer)
    if stage.crop is not None:
        _check_crop(models, policy, stage, stage.crop)
    return scorer


def _check_crop(models: Models, policy: Policy, stage: StagePart, crop: CropPart) -> None:
    (source,) = (before for before in policy.decision.stages if before.name == crop.stage)
    _check_labels(policy, stage, "crop", crop.labels, source.model, models.scorer(source.model, source.input_px))


def _check_labels(
    policy: Policy, stage: StagePart, where: str, labels: Sequence[str], model: str, scorer: Scorer
) -> None:
    if unknown := sorted(set(labels) - set(scorer.labels)):
        raise UserError(
            Reason.BAD_POLICY,
            f"policy '{policy.name}', stage '{stage.name}', {where}: model {model} has no "
            f"label {', '.join(unknown)}; it has {', '.join(scorer.labels)}",
        )
