"""Values about decisions: answers, verdicts, the stages that led to them, and the states of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from pipeline.detections import Findings
from pipeline.errors import Reason


class Answer(StrEnum):
    POSITIVE = "positive"
    NEGATIVE = "negative"
    REVIEW = "review"
    OPEN = "open"  # nobody is asked: the policy leaves it unanswered once a budget is spent


class RunState(StrEnum):
    """queued → processing → decided | escalated → … | deferred → … | in_review → decided, or rejected, failed,
    superseded."""

    QUEUED = "queued"
    PROCESSING = "processing"
    DECIDED = "decided"
    ESCALATED = "escalated"
    DEFERRED = "deferred"
    IN_REVIEW = "in_review"
    REJECTED = "rejected"
    FAILED = "failed"
    SUPERSEDED = "superseded"

    @property
    def is_open(self) -> bool:
        """Whether a machine still has work to do on the run."""
        return self in {RunState.QUEUED, RunState.PROCESSING, RunState.ESCALATED, RunState.DEFERRED}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question, and all that is needed to account for it.

    `evidence` holds indices of keyframes: those that made it positive or doubtful; all that were judged where it
    is negative. `stage` is the one that gave the answer, `review` where a person must; `model` and
    `weights_sha256` are of the last model that tried.
    """

    question: str
    answer: Answer
    score: float
    stage: str
    model: str | None
    weights_sha256: str | None
    policy: str
    decision_hash: str
    owner: str
    evidence: tuple[int, ...]
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class VlmUsage:
    """What a vision-language model's engine says was used. `tokens_in` counts the cached ones too."""

    requests: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    bytes_sent: int = 0

    def __add__(self, other: VlmUsage) -> VlmUsage:
        return VlmUsage(
            self.requests + other.requests,
            self.tokens_in + other.tokens_in,
            self.tokens_cached + other.tokens_cached,
            self.tokens_out + other.tokens_out,
            self.bytes_sent + other.bytes_sent,
        )


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What one stage did for one video.

    `findings` maps keyframe index → what the model said about it; `scores` maps question → keyframe index → how
    that answers the question, for the keyframes that were in doubt. A VLM has no `weights_sha256` of ours.
    `images` is how many the model was shown (crops each count), `device_s` the time on an accelerator, `usage` a VLM's.
    """

    stage: str
    model: str
    weights_sha256: str | None
    asked: tuple[str, ...]
    settled: tuple[str, ...]
    findings: dict[int, Findings]
    scores: dict[str, dict[int, float]]
    cpu_s: float
    money_nano: int
    images: int = 0
    device_s: float = 0.0
    usage: VlmUsage = VlmUsage()


@dataclass(frozen=True, slots=True)
class Doubt:
    """A question that a VLM is to judge, and the keyframes that are in doubt."""

    question: str
    keyframes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CascadeOutcome:
    """Verdicts for every question of the policy, in its order, and the stages that ran, in theirs.

    The verdict on a question of `doubts` is what stands where no VLM can be asked: a person answers it.
    """

    verdicts: tuple[Verdict, ...]
    stages: tuple[StageRecord, ...]
    doubts: tuple[Doubt, ...] = ()

    def without_doubts(self) -> CascadeOutcome:
        """The outcome where there is no VLM to ask."""
        return replace(self, doubts=())

    @property
    def state(self) -> RunState:
        """`escalated` while a VLM is to judge, `in_review` while any question waits for a person, else `decided`."""
        if self.doubts:
            return RunState.ESCALATED
        waiting = any(v.answer is Answer.REVIEW for v in self.verdicts)
        return RunState.IN_REVIEW if waiting else RunState.DECIDED
