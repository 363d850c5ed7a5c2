"""What the cascade needs from models: given images, findings and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pipeline.detections import Scored
from pipeline.media import BgrImage


class Scorer(Protocol):
    """One loaded model."""

    @property
    def weights_sha256(self) -> str: ...

    @property
    def reading_sha256(self) -> str:
        """Names the way its input is prepared and its output is read."""
        ...

    @property
    def labels(self) -> Sequence[str]:
        """Every label the model can give."""
        ...

    @property
    def batch_size(self) -> int:
        """How many images at once the device gains from; 1 on a CPU."""
        ...

    def score(self, images: Sequence[BgrImage]) -> Scored:
        """Judge each image. Raises TransientError(MODEL_UNAVAILABLE) when the device fails."""
        ...


class Models(Protocol):
    """Loads models on first use and keeps them."""

    def scorer(self, name: str, input_px: int | None = None) -> Scorer:
        """The model called `name`. Raises FatalError when its weights are missing, altered or unusable."""
        ...
