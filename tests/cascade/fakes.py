"""A scripted stand-in for the models, policies built from a few words, and images that carry their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.cascade.policy import Policy
from pipeline.detections import Detection, Findings, Scored
from pipeline.media import BgrImage

Scores = Mapping[str, float]
"""Label → score, of one image."""


def sha(model: str) -> str:
    return model.encode().hex().ljust(64, "0")[:64]


def numbered(count: int) -> list[BgrImage]:
    """Images of one pixel whose blue is their index."""
    return [np.full((1, 1, 3), index, dtype=np.uint8) for index in range(count)]


@dataclass
class FakeScorer:
    """Says what `script` holds for each image; `calls` keeps the image numbers of each call."""

    script: Sequence[Scores]
    weights_sha256: str
    labels: Sequence[str]
    batch_size: int = 1
    reading_sha256: str = "0" * 64
    calls: list[list[int]] = field(default_factory=list)

    def score(self, images: Sequence[BgrImage]) -> Scored:
        numbers = [int(image[0, 0, 0]) for image in images]
        self.calls.append(numbers)
        findings = (
            Findings(tuple(Detection(label, score) for label, score in self.script[number].items()))
            for number in numbers
        )
        return Scored(tuple(findings), cpu_s=0.25 * len(images))


class FakeModels:
    """Loads `FakeScorer`s and remembers which."""

    def __init__(self, **scorers: FakeScorer) -> None:
        self.scorers = scorers
        self.loaded: list[tuple[str, int | None]] = []

    def scorer(self, name: str, input_px: int | None = None) -> FakeScorer:
        self.loaded.append((name, input_px))
        return self.scorers[name]

    @property
    def calls(self) -> dict[str, list[list[int]]]:
        return {name: scorer.calls for name, scorer in self.scorers.items()}


def scripted(model: str, *images: Scores, labels: Sequence[str] = ("a", "b", "c"), batch_size: int = 1) -> FakeScorer:
    return FakeScorer(images, sha(model), labels, batch_size)


def rule(labels: str, positive_at: float = 0.8, negative_at: float = 0.2) -> dict[str, Any]:
    return {"labels": list(labels), "positive_at": positive_at, "negative_at": negative_at}


def document(stages: Mapping[str, Mapping[str, Mapping[str, Any]]], **decision: Any) -> dict[str, Any]:
    """A policy document: `stages` maps model → question → rule; stage and model share a name."""
    questions = sorted({question for answers in stages.values() for question in answers})
    return {
        "schema_version": 2,
        "name": "test",
        "decision": {
            "models": {model: sha(model) for model in stages},
            "questions": {question: {"text": f"Is there {question}?"} for question in questions},
            "stages": [{"name": model, "model": model, "answers": answers} for model, answers in stages.items()],
        }
        | decision,
        "commercial": {"owner": "team", "currency": "EUR", "prices": {"cpu_second": 0.001, "review_minute": "0.5"}},
    }


def vlm(*questions: str, **fields: Any) -> dict[str, Any]:
    """A VLM stage that answers `questions`."""
    answers = {name: {"wording": f"Is there {name}?", "positive_at": 0.8, "negative_at": 0.2} for name in questions}
    return {"name": "judge", "model": "Org/Model-7B", "prompt": "You look at pictures.", "answers": answers} | fields


def policy(stages: Mapping[str, Mapping[str, Mapping[str, Any]]], **decision: Any) -> Policy:
    return Policy.model_validate(document(stages, **decision))
