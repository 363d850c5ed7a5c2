"""The policy document: what is asked, how it is decided, what it costs and who owns it.

A policy has two parts. The *decision part* holds everything that can change an answer; its SHA-256 is the
`decision_hash` that names runs and verdicts. The *commercial part* (owner, prices, goals) may change without
making anything undecided.
"""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from pipeline.media import KeyframeSettings

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Question = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Words = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$")]
"""Any text but NUL, which PostgreSQL's JSONB cannot keep."""
Price = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=18, decimal_places=9, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeyframesPart(_Part):
    """How many keyframes represent a video."""

    per_minute: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 5.0
    min_gap_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 1.0
    max_keyframes: Annotated[int, Field(ge=1, le=1000)] = 60

    def settings(self) -> KeyframeSettings:
        return KeyframeSettings(per_minute=self.per_minute, min_gap_s=self.min_gap_s, max_keyframes=self.max_keyframes)


class QuestionPart(_Part):
    """What is asked; `sensitive` pictures are blurred until somebody asks to see them."""

    text: Annotated[Words, Field(max_length=500)]
    sensitive: bool = False


class AnswerRule(_Part):
    """How a stage answers one question from its model's labels.

    Positive when any keyframe scores at least `positive_at`, negative when all score at most `negative_at`;
    the keyframes between go to the next stage.
    """

    labels: Annotated[tuple[Words, ...], Field(min_length=1, max_length=200)]
    positive_at: Share
    negative_at: Share

    @model_validator(mode="after")
    def _thresholds_in_order(self) -> AnswerRule:
        if self.negative_at >= self.positive_at:
            raise ValueError(
                f"negative_at ({self.negative_at}) must be below positive_at ({self.positive_at}): "
                "scores between the two are the doubtful ones"
            )
        return self


class StagePart(_Part):
    """One model, asked in its turn."""

    name: Name
    model: Name
    input_px: Annotated[int, Field(ge=32, le=4096)] | None = None
    answers: Annotated[dict[Question, AnswerRule], Field(min_length=1)]


class DecisionPart(_Part):
    """Everything that can change an answer."""

    keyframes: KeyframesPart = KeyframesPart()
    min_coverage: Share = 0.5
    models: Annotated[dict[Name, Sha256], Field(min_length=1)]
    questions: Annotated[dict[Question, QuestionPart], Field(min_length=1)]
    stages: Annotated[tuple[StagePart, ...], Field(min_length=1, max_length=16)]

    @model_validator(mode="after")
    def _references_resolve(self) -> DecisionPart:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError(f"stage names must differ, found {names}")
        for stage in self.stages:
            if stage.model not in self.models:
                raise ValueError(
                    f"stage '{stage.name}' uses model '{stage.model}', which has no pinned SHA-256: "
                    "add it under decision.models (`videosieve models list` prints the hashes)"
                )
            if unknown := sorted(set(stage.answers) - set(self.questions)):
                raise ValueError(
                    f"stage '{stage.name}' answers {unknown}, which no question declares: "
                    f"declared are {sorted(self.questions)}"
                )
        asked = {question for stage in self.stages for question in stage.answers}
        if unasked := sorted(set(self.questions) - asked):
            raise ValueError(f"no stage answers {unasked}: add an answer rule, or remove the question")
        if idle := sorted(set(self.models) - {stage.model for stage in self.stages}):
            raise ValueError(f"no stage uses model {idle}: remove it under decision.models")
        return self


class PricesPart(_Part):
    """Prices in the policy's currency. `vlm_image` prices the yardstick "a VLM on every frame"."""

    cpu_second: Price = Decimal(0)
    vlm_image: Price = Decimal(0)
    review: Price = Decimal(0)


class CommercialPart(_Part):
    """Who answers for the policy, and what things cost."""

    owner: Annotated[Words, Field(max_length=200)]
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = "USD"
    prices: PricesPart = PricesPart()
    latency_goal_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0


class Policy(_Part):
    """A validated policy document."""

    schema_version: Literal[1]
    name: Name
    decision: DecisionPart
    commercial: CommercialPart

    @cached_property
    def decision_hash(self) -> str:
        """SHA-256 of the decision part in canonical JSON; fields that are not set do not count."""
        part: dict[str, Any] = self.decision.model_dump(mode="json", exclude_none=True)
        canonical = json.dumps(part, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()
