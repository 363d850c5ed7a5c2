"""The policy document: what is asked, how it is decided, what it costs and who owns it.

A policy has two parts. The *decision part* holds everything that can change an answer; its SHA-256 is the
`decision_hash` that names runs and verdicts. The *commercial part* (owner, prices, budgets, goals) may change without
making anything undecided.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pipeline.canonical import digest
from pipeline.cascade.commercial import CommercialPart, upgraded
from pipeline.cascade.parts import Name, Number, Part, Question, Sha256, Share, Words
from pipeline.cascade.rules import AnswerRule, CropPart
from pipeline.cascade.vlm_part import VlmPart
from pipeline.media import KeyframeSettings

SCHEMA_VERSION = 2

RESERVED_STAGES = frozenset({"keyframes", "review"})
"""Stages of every run: their names are taken in the ledger and in metrics."""


class KeyframesPart(Part):
    """How many keyframes represent a video."""

    per_minute: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False), Number] = 5.0
    min_gap_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False), Number] = 1.0
    max_keyframes: Annotated[int, Field(ge=1, le=1000), Number] = 60

    def settings(self) -> KeyframeSettings:
        return KeyframeSettings(per_minute=self.per_minute, min_gap_s=self.min_gap_s, max_keyframes=self.max_keyframes)


class QuestionPart(Part):
    """What is asked; `sensitive` pictures are blurred until somebody asks to see them."""

    text: Annotated[Words, Field(max_length=500)]
    sensitive: bool = False


class ModelPin(Part):
    """Which model exactly: its weights, and the way they are read.

    `reading` is the SHA-256 of what the catalogue says of preprocessing, head and suppression. A pin that is only a
    string pins the weights alone.
    """

    weights: Sha256
    reading: Sha256 | None = None

    @model_validator(mode="before")
    @classmethod
    def _weights_alone(cls, value: object) -> object:
        return {"weights": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.weights if self.reading is None else handler(self)


class StagePart(Part):
    """One model, asked in its turn; it sees whole keyframes, or `crop`s of them."""

    name: Name
    model: Name
    input_px: Annotated[int, Field(ge=32, le=4096), Number] | None = None
    crop: CropPart | None = None
    answers: Annotated[dict[Question, AnswerRule], Field(min_length=1)]


class DecisionPart(Part):
    """Everything that can change an answer."""

    keyframes: KeyframesPart = KeyframesPart()
    min_coverage: Share = 0.5
    models: dict[Name, ModelPin]
    questions: Annotated[dict[Question, QuestionPart], Field(min_length=1)]
    stages: Annotated[tuple[StagePart, ...], Field(max_length=16)]
    vlm: VlmPart | None = None

    @model_validator(mode="after")
    def _references_resolve(self) -> DecisionPart:
        self._check_names()
        for index, stage in enumerate(self.stages):
            if stage.model not in self.models:
                raise ValueError(
                    f"stage '{stage.name}' uses model '{stage.model}', which has no pinned SHA-256: "
                    "add it under decision.models (`videosieve models pin {stage.model}` prints it)"
                )
            if stage.crop is not None:
                self._check_crop(stage, stage.crop, self.stages[:index])
        if idle := sorted(set(self.models) - {stage.model for stage in self.stages}):
            raise ValueError(f"no stage uses model {idle}: remove it under decision.models")
        return self

    def _check_names(self) -> None:
        named: list[StagePart | VlmPart] = [*self.stages, *([self.vlm] if self.vlm else [])]
        names = [stage.name for stage in named]
        if len(set(names)) != len(names):
            raise ValueError(f"stage names must differ, found {names}")
        if taken := sorted(RESERVED_STAGES & set(names)):
            raise ValueError(f"a stage cannot be called {taken}: every run has a stage of that name; rename it")
        for stage in named:
            if unknown := sorted(set(stage.answers) - set(self.questions)):
                raise ValueError(
                    f"stage '{stage.name}' answers {unknown}, which no question declares: "
                    f"declared are {sorted(self.questions)}"
                )
        asked = {question for stage in named for question in stage.answers}
        if unasked := sorted(set(self.questions) - asked):
            raise ValueError(f"no stage answers {unasked}: add an answer rule, or remove the question")

    @staticmethod
    def _check_crop(stage: StagePart, crop: CropPart, earlier: tuple[StagePart, ...]) -> None:
        source = next((before for before in earlier if before.name == crop.stage), None)
        if source is None:
            raise ValueError(
                f"stage '{stage.name}' crops what stage '{crop.stage}' found, which is none of the stages before it: "
                f"{[before.name for before in earlier]}"
            )
        if unseen := sorted(set(stage.answers) - set(source.answers)):
            raise ValueError(
                f"stage '{stage.name}' answers {unseen} on crops of stage '{crop.stage}', which does not answer it and "
                "may not have looked at the keyframes in doubt: let it answer that question too, if with positive_at: 1"
            )


class Policy(Part):
    """A validated policy document."""

    schema_version: Literal[2]
    name: Name
    decision: DecisionPart
    commercial: CommercialPart

    @model_validator(mode="before")
    @classmethod
    def _read_older_versions(cls, document: object) -> object:
        return upgraded(document)

    @cached_property
    def decision_hash(self) -> str:
        """SHA-256 of the decision part in canonical JSON; fields that are not set do not count."""
        part: dict[str, Any] = self.decision.model_dump(mode="json", exclude_none=True)
        return digest(part)

    @cached_property
    def document_hash(self) -> str:
        """SHA-256 of the whole document likewise: tells versions apart whose commercial parts differ."""
        return digest(self.document())

    def document(self) -> dict[str, Any]:
        """The policy as plain JSON values, defaults written out: what the ledger keeps."""
        return self.model_dump(mode="json", exclude_none=True)
