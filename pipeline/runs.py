"""Values of the ledger: claims, commits, and what can be read back about runs, uploads and reviews."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pipeline.costs import StageCost
from pipeline.errors import Reason
from pipeline.media import ObjectRef
from pipeline.verdict import Answer, CascadeOutcome, RunState


class Lane(StrEnum):
    """Which queue a message came in by: live uploads go first, backfill fills what is left.

    What screening left undecided goes on to the judging workers by the escalation lane.
    """

    UPLOADS = "uploads"
    BACKFILL = "backfill"
    ESCALATION = "escalation"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer: owns API keys, uploads and, through them, videos."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The run is ours until its lease ends; every write must show `fence`.

    `attempts` counts claims, this one too; `faults` counts the attempts that ended by a fault of the video's.
    """

    run_id: UUID
    fence: int
    attempts: int
    faults: int
    trace_id: str
    tenant: str | None = None
    uploaded_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """Another worker's lease is live, or the run is put off, for `lease_left_s` more seconds."""

    run_id: UUID
    lease_left_s: float


@dataclass(frozen=True, slots=True)
class Settled:
    """There is nothing left to do for a machine."""

    run_id: UUID
    state: RunState


ClaimResult = Claimed | Busy | Settled


@dataclass(frozen=True, slots=True)
class Commit:
    """How an attempt ended. `state` is one of decided, escalated, in_review, rejected, failed, superseded.

    `outcome` is None where no verdict came about. `costs` are in `currency`, and are added to those of the run's
    earlier attempts.
    """

    state: RunState
    outcome: CascadeOutcome | None = None
    result_key: str | None = None
    currency: str | None = None
    costs: tuple[StageCost, ...] = ()
    reason: Reason | None = None
    detail: str | None = None
    warnings: tuple[str, ...] = ()
    coverage: float | None = None

    @property
    def money_nano(self) -> int:
        """What this attempt cost."""
        return sum(cost.money_nano for cost in self.costs)

    @property
    def cpu_s(self) -> float:
        return sum(cost.cpu_s for cost in self.costs)


@dataclass(frozen=True, slots=True)
class Activation:
    """Who made which version of which policy the active one, and why. Activations are only ever added."""

    id: int
    at: datetime
    who: str
    why: str
    policy: str
    decision_hash: str
    document_hash: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A run that has to be put on its lane's queue now."""

    run_id: UUID
    ref: ObjectRef
    trace_id: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What says whose artifacts count: the run's state, the fence of its last claim, and its result."""

    state: RunState
    fence: int
    result_key: str | None


@dataclass(frozen=True, slots=True)
class UploadStatus:
    """How far an upload got. `state` is `awaiting_upload` until its object is known, then its run's state."""

    upload_id: UUID
    filename: str
    state: str
    created_at: datetime
    expires_at: datetime
    bucket: str
    key: str
    trace_id: str
    run_id: UUID | None = None
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class VerdictView:
    """A verdict as it stands: `answer` is the latest person's where one answered, else the machine's."""

    question: str
    machine_answer: Answer
    answer: Answer
    score: float
    stage: str
    model: str | None
    weights_sha256: str | None
    owner: str
    evidence: tuple[int, ...]
    reason: str | None
    answered_by: str | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """All the ledger knows of one run. Times are the database's clock."""

    run_id: UUID
    bucket: str
    key: str
    version: str
    tenant: str | None
    policy: str
    decision_hash: str
    state: RunState
    lane: Lane
    attempts: int
    faults: int
    fence: int
    trace_id: str
    created_at: datetime
    updated_at: datetime
    decided_at: datetime | None
    lease_until: datetime | None
    reason: str | None
    detail: str | None
    result_key: str | None
    money_nano: int
    currency: str | None
    cpu_s: float = 0.0
    coverage: float | None = None
    warnings: tuple[str, ...] = ()
    size_bytes: int | None = None
    verdicts: tuple[VerdictView, ...] = ()

    @property
    def ref(self) -> ObjectRef:
        """The object, pinned to the version that the run is about."""
        kind, _, value = self.version.partition(":")
        return ObjectRef(
            self.bucket,
            self.key,
            version_id=value if kind == "v" else None,
            etag=value if kind == "e" else None,
            size_bytes=self.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One question about one video that waits for a person, or did."""

    run_id: UUID
    question: str
    video: str
    tenant: str | None
    policy: str
    score: float
    reason: str | None
    since: datetime
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """What a person said, and why. Answers are only ever added."""

    answer: Answer
    who: str
    why: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ReviewDetail:
    """A review item with the machine's answer, the answer that holds now, and its history, oldest first."""

    item: ReviewItem
    machine_answer: Answer
    answer: Answer
    history: tuple[ReviewAnswer, ...]
    result_key: str | None
