"""Money as whole nano-units of the policy's currency, so that sums are exact. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from pipeline.budgets import Caps
from pipeline.cascade.commercial import BudgetPart, PricesPart, VlmPricesPart
from pipeline.cascade.policy import Policy
from pipeline.cascade.vlm_part import ImagesPart
from pipeline.costs import StageCost
from pipeline.media import Extraction
from pipeline.verdict import Answer, CascadeOutcome, StageRecord, VlmUsage

NANO = 1_000_000_000
MOST_NANO = 10**17
"""A yardstick is at most a hundred million of the currency, however many frames a file claims: 64 bits keep it."""
CHAT_FRAME_TOKENS = 64
"""Generous for what a chat template puts around a message or a picture."""


def nano(price: Decimal, quantity: Decimal | float | int = 1) -> int:
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
    video = extraction.video
    return Bill(
        currency=policy.commercial.currency,
        keyframes_nano=nano(prices.cpu_second, extraction.cost.cpu_s),
        stages_nano=sum(stage.money_nano for stage in outcome.stages),
        review_nano=_reviews(outcome) * review_nano(prices),
        vlm_every_frame_nano=yardstick_nano(policy, video.frames, video.width_px, video.height_px),
        vlm_every_keyframe_nano=yardstick_nano(policy, len(extraction.keyframes), video.width_px, video.height_px),
    )


def stage_costs(policy: Policy, extraction: Extraction, outcome: CascadeOutcome) -> tuple[StageCost, ...]:
    """The ledger's rows for one screened video: extraction, the models, people; they add up to the bill's total."""
    billed, cost = bill(policy, extraction, outcome), extraction.cost
    keyframes = StageCost(
        "keyframes",
        cpu_s=cost.cpu_s,
        money_nano=billed.keyframes_nano,
        images=len(extraction.keyframes),
        bytes=cost.bytes_read,
        every_frame_nano=billed.vlm_every_frame_nano,
        every_keyframe_nano=billed.vlm_every_keyframe_nano,
    )
    return (keyframes, *map(cost_of, outcome.stages), *review_costs(policy, outcome))


def cost_of(stage: StageRecord) -> StageCost:
    """The ledger's row for one model's stage."""
    return StageCost(
        stage.stage,
        stage.model,
        cpu_s=stage.cpu_s,
        device_s=stage.device_s,
        money_nano=stage.money_nano,
        images=stage.images,
        bytes=stage.usage.bytes_sent,
        requests=stage.usage.requests,
        tokens_in=stage.usage.tokens_in,
        tokens_cached=stage.usage.tokens_cached,
        tokens_out=stage.usage.tokens_out,
    )


def vlm_cost(policy: Policy, usage: VlmUsage) -> StageCost:
    """The ledger's row for what a VLM took that came to nothing. Raises ValueError for a policy without one."""
    vlm = policy.decision.vlm
    if vlm is None:
        raise ValueError(f"policy '{policy.name}' has no VLM stage")
    return StageCost(
        vlm.name,
        vlm.model,
        money_nano=vlm_nano(policy.commercial.prices.vlm, usage),
        bytes=usage.bytes_sent,
        requests=usage.requests,
        tokens_in=usage.tokens_in,
        tokens_cached=usage.tokens_cached,
        tokens_out=usage.tokens_out,
    )


def review_costs(
    policy: Policy, outcome: CascadeOutcome, among: Collection[str] | None = None
) -> tuple[StageCost, ...]:
    """The ledger's row for the people who are asked, none where nobody is (yet, where a VLM is to judge first).

    Only questions `among` these count, where they are given: the others were charged by an earlier stage.
    """
    each = review_nano(policy.commercial.prices)
    reviews = _reviews(outcome, among)
    return (StageCost("review", money_nano=reviews * each, requests=reviews),) if reviews else ()


def _reviews(outcome: CascadeOutcome, among: Collection[str] | None = None) -> int:
    """How many questions a person is asked now; those of `doubts` may yet be settled."""
    doubts = {doubt.question for doubt in outcome.doubts}
    asked = [v.question for v in outcome.verdicts if v.answer is Answer.REVIEW and v.question not in doubts]
    return sum(among is None or question in among for question in asked)


def caps(policy: Policy) -> Caps:
    """The policy's budgets as amounts of money."""
    budgets = policy.commercial.budgets

    def amount(budget: BudgetPart | None) -> int | None:
        return None if budget is None else nano(budget.amount)

    return Caps(
        policy=policy.name,
        currency=policy.commercial.currency,
        per_video_nano=amount(budgets.per_video),
        per_tenant_day_nano=amount(budgets.per_tenant_day),
        per_day_nano=amount(budgets.per_day),
    )


def review_nano(prices: PricesPart) -> int:
    """What one question looked at by a person costs."""
    return nano(prices.review_minute, prices.minutes_per_review)


def vlm_nano(prices: VlmPricesPart, usage: VlmUsage) -> int:
    """What a VLM's work costs, from its own usage. Cached tokens beyond those in the prompt do not count."""
    cached = min(usage.tokens_cached, usage.tokens_in)
    per_cached = prices.token_in if prices.token_cached is None else prices.token_cached
    return (
        nano(prices.token_in, usage.tokens_in - cached)
        + nano(per_cached, cached)
        + nano(prices.token_out, usage.tokens_out)
        + nano(prices.request, usage.requests)
    )


def worst_case_nano(policy: Policy, *, text_bytes: int, requests: int = 1) -> int:
    """The most that `requests` requests of the policy's VLM stage can cost: what to reserve before the first.

    `text_bytes` is the UTF-8 length of all text in one request: a byte-level tokenizer never makes more tokens than
    bytes. Nothing is taken to be cached, the answer to run to `max_tokens`, images to fill their budget.
    Raises ValueError for a policy without a VLM.
    """
    vlm = policy.decision.vlm
    if vlm is None:
        raise ValueError(f"policy '{policy.name}' has no VLM stage")
    prices = policy.commercial.prices.vlm
    tokens_in = text_bytes + vlm.images.max_image_tokens + CHAT_FRAME_TOKENS * (1 + vlm.images.max_images)
    dearest = max(prices.token_in, prices.token_cached or Decimal(0))
    one = nano(dearest, tokens_in) + nano(prices.token_out, vlm.sampling.max_tokens) + nano(prices.request)
    return requests * one


def yardstick_nano(policy: Policy, images: int, width_px: int, height_px: int) -> int:
    """What showing so many pictures to a VLM costs: their tokens and the requests they fill; no text, no answers.

    So it is less than one would pay, and flatters nobody. A policy without a VLM stage takes the default pictures.
    """
    prices = policy.commercial.prices.vlm
    shown = policy.decision.vlm.images if policy.decision.vlm else ImagesPart()
    requests = -(-images // shown.max_images)
    cost_nano = nano(prices.token_in, images * shown.tokens(width_px, height_px)) + nano(prices.request, requests)
    return min(MOST_NANO, cost_nano)
