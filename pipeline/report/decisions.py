"""Verdicts and the way to them, as the page shows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.document import Document
from pipeline.report.reading import items, mapping, number, score, text, whole
from pipeline.report.wording import REVIEW_REASONS, plural, words

ANSWERS = ("positive", "negative", "review", "open")
"""What is none of these reads as `review`: somebody has to look."""


@dataclass(frozen=True, slots=True)
class Step:
    """One station on a question's way; `kind` is `keyframes`, `stage`, `person` or `open`."""

    kind: str
    name: str
    model: str
    facts: tuple[str, ...]
    outcome: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One question with its answer, who gave it and how it came about. Hashes are whole."""

    question: str
    text: str
    sensitive: bool
    answer: str
    score: str
    stage: str
    model: str
    weights_sha256: str
    policy: str
    decision_hash: str
    owner: str
    evidence: tuple[int, ...]
    reason: str
    reason_text: str
    steps: tuple[Step, ...]

    @property
    def words(self) -> str:
        return words(self.question)


def decisions(document: Document, sensitive: tuple[str, ...], keyframes: int) -> tuple[Decision, ...]:
    """One `Decision` per verdict, in the document's order."""
    policy = mapping(document.get("policy"))
    stages = [mapping(stage) for stage in items(document.get("stages"))]
    found: list[Decision] = []
    for verdict in map(mapping, items(document.get("verdicts"))):
        question, answer, reason = (text(verdict.get(key)) for key in ("question", "answer", "reason"))
        declared = mapping(mapping(policy.get("questions")).get(question))
        known_score = number(verdict.get("score"))
        found.append(
            Decision(
                question=question,
                text=text(declared.get("text")) or words(question),
                sensitive=question in sensitive,
                answer=_known(answer),
                score="–" if known_score is None else f"{score(known_score):.2f}",
                stage=text(verdict.get("stage")),
                model=text(verdict.get("model")),
                weights_sha256=text(verdict.get("weights_sha256")),
                policy=text(verdict.get("policy")),
                decision_hash=text(verdict.get("decision_hash")),
                owner=text(verdict.get("owner")),
                evidence=_evidence(verdict, keyframes),
                reason=reason,
                reason_text=REVIEW_REASONS.get(reason, words(reason)),
                steps=_steps(verdict, question, stages, keyframes),
            )
        )
    return tuple(found)


def _known(answer: str) -> str:
    return answer if answer in ANSWERS else "review"


def _evidence(verdict: Document, keyframes: int) -> tuple[int, ...]:
    indices = (whole(index) for index in items(verdict.get("evidence")))
    return tuple(dict.fromkeys(index for index in indices if index is not None and 0 <= index < keyframes))


def _steps(verdict: Document, question: str, stages: list[Document], keyframes: int) -> tuple[Step, ...]:
    steps = [Step("keyframes", plural(keyframes, "keyframe"), "", (), "")]
    answer = _known(text(verdict.get("answer")))
    for stage in stages:
        if question not in items(stage.get("asked")):
            continue
        settled = question in items(stage.get("settled"))
        low_coverage = settled and answer == "review"
        steps.append(
            Step(
                kind="stage",
                name=text(stage.get("stage")),
                model=text(stage.get("model")),
                facts=_facts(stage, question),
                outcome="settled, but too little was seen" if low_coverage else "settled" if settled else "passed on",
                answer=answer if settled and not low_coverage else "",
            )
        )
    if answer == "review":
        evidence = len(_evidence(verdict, keyframes))
        facts = (f"to look at {plural(evidence, 'keyframe')}",) if evidence else ()
        steps.append(Step("person", "person", "", facts, "waits", "review"))
    elif answer == "open":
        steps.append(Step("open", "nobody", "", ("no person is asked",), "left unanswered", "open"))
    return tuple(steps)


def _facts(stage: Document, question: str) -> tuple[str, ...]:
    """How many keyframes were in doubt here, and how the highest of them scored. A VLM was shown all at once."""
    scored = [mapping(entry) for entry in items(mapping(stage.get("scores")).get(question))]
    highest = max((score(entry.get("score")) for entry in scored), default=None)
    shown = items(mapping(stage.get("vlm")).get("shown"))
    looked_at = f"looked at {plural(len(shown or scored), 'keyframe')}"
    return (looked_at,) if highest is None else (looked_at, f"highest score {highest:.2f}")
