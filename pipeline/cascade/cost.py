"""Money as whole nano-units of the policy's currency, so that sums are exact. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from pipeline.cascade.policy import Policy
from pipeline.media import Extraction
from pipeline.verdict import Answer, CascadeOutcome

NANO = 1_000_000_000


def nano(price: Decimal, quantity: float | int = 1) -> int:
    """`quantity` things at `price` each, in nano-units, rounded half to even."""
    return round(Fraction(price) * Fraction(str(quantity)) * NANO)  # Decimal would round to 28 digits first


@dataclass(frozen=True, slots=True)
class Bill:
    """What one video cost, and what it would have cost to show pictures of it to a VLM."""

    currency: str
    keyframes_nano: int
    stages_nano: int
    review_nano: int
    vlm_every_frame_nano: int
    vlm_every_keyframe_nano: int

    @property
    def total_nano(self) -> int:
        return self.keyframes_nano + self.stages_nano + self.review_nano


def bill(policy: Policy, extraction: Extraction, outcome: CascadeOutcome) -> Bill:
    """Adds up a video's way; the yardsticks are computed from the same prices."""
    prices = policy.commercial.prices
    reviews = sum(verdict.answer is Answer.REVIEW for verdict in outcome.verdicts)
    return Bill(
        currency=policy.commercial.currency,
        keyframes_nano=nano(prices.cpu_second, extraction.cost.cpu_s),
        stages_nano=sum(stage.money_nano for stage in outcome.stages),
        review_nano=nano(prices.review, reviews),
        vlm_every_frame_nano=nano(prices.vlm_image, extraction.video.frames),
        vlm_every_keyframe_nano=nano(prices.vlm_image, len(extraction.keyframes)),
    )
