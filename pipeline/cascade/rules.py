"""How scores answer a question: thresholds, how keyframes combine, calibration, and what a stage sees."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipeline.cascade.parts import Label, Name, Number, Part, Share


class AtLeast(Part):
    """So many keyframes make it positive; in a shorter video, all of them."""

    at_least: Annotated[int, Field(ge=2, le=1000), Number]


def _combination(value: object) -> object:
    """The canonical form, so that a default that is written out has the hash of one that is not."""
    if isinstance(value, AtLeast) or value is None or value == "mean":
        return value
    count = 1 if value == "any" else None
    if isinstance(value, dict) and len(value) == 1:
        count = value.get("at_least")
    if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 1000:
        return None if count == 1 else value
    raise ValueError("must be `any` (the default), `mean`, or `{at_least: n}` with n from 1 to 1000")


Combine = Annotated[Literal["mean"] | AtLeast | None, BeforeValidator(_combination)]

Point = tuple[Share, Share]


class Thresholds(Part):
    """Positive from `positive_at`, negative up to `negative_at`; between the two is doubt.

    `positive_at: 1.0` means never: models round to 1, and a stage that is there to say no must not say yes for that.
    `negative_at: 0.0` is reached, by what was not found at all.

    `calibration` maps what the model says to how likely it is right, as points (said, meant) of a line; it is
    applied before the thresholds. Outside the points their ends hold.
    """

    positive_at: Share
    negative_at: Share
    calibration: Annotated[tuple[Point, ...], Field(min_length=2, max_length=100)] | None = None

    @model_validator(mode="after")
    def _thresholds_in_order(self) -> Thresholds:
        if self.negative_at >= self.positive_at:
            raise ValueError(
                f"negative_at ({self.negative_at}) must be below positive_at ({self.positive_at}): "
                "scores between the two are the doubtful ones"
            )
        for (said, meant), (next_said, next_meant) in pairwise(self.calibration or ()):
            if not (said < next_said and meant <= next_meant):
                raise ValueError(
                    f"calibration must rise: [{next_said}, {next_meant}] cannot follow [{said}, {meant}]; "
                    "a model that is right less often the surer it is cannot be calibrated"
                )
        return self

    def is_yes(self, meant: float) -> bool:
        """Whether a calibrated score is a yes; NaN is none."""
        return meant >= self.positive_at < 1.0

    def is_no(self, meant: float) -> bool:
        """Whether a calibrated score is a no; NaN is none."""
        return meant <= self.negative_at

    def calibrated(self, score: float) -> float:
        """What `score` means, in 0..1. Without a calibration the score itself; NaN stays NaN."""
        points = self.calibration
        if points is None:
            return score
        if score <= points[0][0]:
            return points[0][1]
        for (low, at_low), (high, at_high) in pairwise(points):
            if score <= high:
                return at_low + (at_high - at_low) * (score - low) / (high - low)
        return score if math.isnan(score) else points[-1][1]


class AnswerRule(Thresholds):
    """How a stage answers one question from its model's labels.

    A keyframe is a yes when its best label scores at least `positive_at`, a no up to `negative_at`, else doubtful.
    `combine` says what that makes of the video: `any` (the default) takes one yes, `{at_least: n}` takes n, `mean`
    compares the mean of the scores.
    """

    labels: Annotated[tuple[Label, ...], Field(min_length=1, max_length=200)]
    combine: Combine = None

    @property
    def yes_needed(self) -> int:
        """How many keyframes must say yes."""
        return self.combine.at_least if isinstance(self.combine, AtLeast) else 1


class CropPart(Part):
    """What a stage sees instead of whole keyframes: what an earlier stage's detector found on them.

    Boxes of `labels` scoring at least `min_score`, the best `most` of them, each widened by `margin` of its sides.
    A keyframe without such a box is seen whole: not to be found is no answer.
    """

    stage: Name
    labels: Annotated[tuple[Label, ...], Field(min_length=1, max_length=200)]
    min_score: Share = 0.25
    margin: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), Number] = 0.1
    most: Annotated[int, Field(ge=1, le=16), Number] = 4
