"""A judged run's result: the screened document with the VLM's verdicts, stage and money. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.cascade.cost import nano, review_costs, vlm_nano
from pipeline.cascade.policy import Policy
from pipeline.errors import Reason
from pipeline.verdict import Answer, CascadeOutcome, StageRecord, Verdict
from pipeline.vlm.case import Case, Document
from pipeline.vlm.judge import Judgement


def stage_record(policy: Policy, case: Case, judgement: Judgement, *, cpu_s: float) -> StageRecord:
    """What the VLM's stage did, and what that cost."""
    stage = policy.decision.vlm
    if stage is None:
        raise ValueError(f"policy '{policy.name}' has no VLM stage")
    prices = policy.commercial.prices
    return StageRecord(
        stage=stage.name,
        model=stage.model,
        weights_sha256=None,
        asked=case.questions,
        settled=judgement.settled,
        findings={},
        scores=judgement.scores,
        cpu_s=cpu_s,
        money_nano=vlm_nano(prices.vlm, judgement.usage) + nano(prices.cpu_second, cpu_s),
        images=len(judgement.shown.indices) * judgement.usage.requests,
        usage=judgement.usage,
    )


def merged_outcome(document: Document, verdicts: Sequence[Verdict], stages: Sequence[StageRecord]) -> CascadeOutcome:
    """The verdicts that screening gave, those on `verdicts`' questions replaced, in the policy's order.

    Raises KeyError, TypeError or ValueError for a document that is none of ours.
    """
    judged = {verdict.question: verdict for verdict in verdicts}
    given = [judged.get(str(found["question"])) or _verdict(found) for found in document["verdicts"]]
    return CascadeOutcome(tuple(given), tuple(stages))


def merged_document(
    document: Document,
    policy: Policy,
    outcome: CascadeOutcome,
    judgement: Judgement | None,
    *,
    lost_nano: int = 0,
) -> dict[str, Any]:
    """The result document of the judged run; `outcome.stages` are those that judging added, `lost_nano` what attempts
    at that cost which came to nothing."""
    money = dict(document["money"])
    money["stages_nano"] += lost_nano + sum(stage.money_nano for stage in outcome.stages)
    judged = {doubt["question"] for doubt in document["doubts"]}
    money["review_nano"] += sum(cost.money_nano for cost in review_costs(policy, outcome, among=judged))
    money["total_nano"] = money["keyframes_nano"] + money["stages_nano"] + money["review_nano"]
    return {
        **document,
        "state": outcome.state.value,
        "doubts": [],
        "verdicts": [_plain_verdict(verdict) for verdict in outcome.verdicts],
        "stages": [*document["stages"], *(_plain_stage(stage, judgement) for stage in outcome.stages)],
        "money": money,
    }


def _verdict(found: Mapping[str, Any]) -> Verdict:
    return Verdict(
        question=str(found["question"]),
        answer=Answer(found["answer"]),
        score=float(found["score"]),
        stage=str(found["stage"]),
        model=found["model"],
        weights_sha256=found["weights_sha256"],
        policy=str(found["policy"]),
        decision_hash=str(found["decision_hash"]),
        owner=str(found["owner"]),
        evidence=tuple(map(int, found["evidence"])),
        reason=Reason(found["reason"]) if found["reason"] else None,
    )


def _plain_verdict(verdict: Verdict) -> dict[str, Any]:
    return asdict(verdict) | {
        "answer": verdict.answer.value,
        "score": round(verdict.score, 4),
        "evidence": list(verdict.evidence),
        "reason": verdict.reason.value if verdict.reason else None,
    }


def _plain_stage(stage: StageRecord, judgement: Judgement | None) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "model": stage.model,
        "weights_sha256": None,
        "asked": list(stage.asked),
        "settled": list(stage.settled),
        "cpu_s": round(stage.cpu_s, 4),
        "device_s": 0.0,
        "images": stage.images,
        "usage": asdict(stage.usage),
        "money_nano": stage.money_nano,
        "scores": {
            question: [{"keyframe": index, "score": round(score, 4)} for index, score in sorted(scores.items())]
            for question, scores in stage.scores.items()
        },
        "findings": [],
        "vlm": _plain_judgement(judgement) if judgement else None,
    }


def _plain_judgement(judgement: Judgement) -> dict[str, Any]:
    timing = judgement.timing
    return {
        "shown": list(judgement.shown.indices),
        "seen": judgement.seen,
        "score_source": judgement.source.value if judgement.source else None,
        "usage_estimated": judgement.estimated,
        "ttft_s": round(timing.ttft_s, 4) if timing else None,
        "total_s": round(timing.total_s, 4) if timing else None,
        "problem": judgement.problem.detail if judgement.problem else None,
    }
