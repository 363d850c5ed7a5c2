"""Numbers that are no judgement: NaN, infinite, or no probabilities.

On the blank image that every model is tried with they mean a broken export. On somebody's picture they may be the
picture's doing, as one that overflows 16-bit floats, and must neither stop a worker nor pass for "nothing found".
"""

from __future__ import annotations

from pipeline.errors import FatalError, Reason


class NonsenseError(FatalError):
    """What a model gave for one image makes no sense."""

    def __init__(self, model: str, what: str) -> None:
        super().__init__(Reason.BAD_MODEL, f"model '{model}': {what}")
