"""One budget of processors for all stages: as many inferences at once as there are cores, however many videos fly.

Fetching and committing wait for others; decoding and inference use a core each. A worker has more videos in flight
than cores, so that these overlap; decoding is bounded by the decoders, inference here, and every library by one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import cv2

from pipeline.cascade.ports import Models, Scorer
from pipeline.detections import Scored
from pipeline.media import BgrImage


def one_thread_each() -> None:
    """Have OpenCV work in the thread that calls it: its pool would take cores that the budget gave to others."""
    cv2.setNumThreads(1)


@dataclass(frozen=True, slots=True)
class SlottedModels:
    """`Models` of which `slots` may judge at once."""

    models: Models
    slots: threading.BoundedSemaphore

    def scorer(self, name: str, input_px: int | None = None) -> Scorer:
        return _SlottedScorer(self.models.scorer(name, input_px), self.slots)


@dataclass(frozen=True, slots=True)
class _SlottedScorer:
    inner: Scorer
    slots: threading.BoundedSemaphore

    @property
    def weights_sha256(self) -> str:
        return self.inner.weights_sha256

    @property
    def reading_sha256(self) -> str:
        return self.inner.reading_sha256

    @property
    def labels(self) -> Sequence[str]:
        return self.inner.labels

    @property
    def batch_size(self) -> int:
        return self.inner.batch_size

    def score(self, images: Sequence[BgrImage]) -> Scored:
        with self.slots:
            return self.inner.score(images)
