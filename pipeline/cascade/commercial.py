"""The commercial part of a policy: who answers for it, what things cost, how much may be spent."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from pipeline.budgets import BudgetScope
from pipeline.cascade.parts import Number, Part, Price, UnitPrice, Words

_V1_IMAGE_TOKENS = 768
"""A picture of the default `max_pixels` at the default `pixels_per_token`."""


class VlmPricesPart(Part):
    """What the engine charges. A cached prompt token costs `token_in` where `token_cached` is not set."""

    token_in: UnitPrice = Decimal(0)
    token_cached: UnitPrice | None = None
    token_out: UnitPrice = Decimal(0)
    request: Price = Decimal(0)


class PricesPart(Part):
    """In the policy's currency. A question looked at by a person takes `minutes_per_review`."""

    cpu_second: UnitPrice = Decimal(0)
    device_second: UnitPrice = Decimal(0)
    vlm: VlmPricesPart = VlmPricesPart()
    review_minute: Price = Decimal(0)
    minutes_per_review: Annotated[Decimal, Field(ge=0, le=100, decimal_places=6, allow_inf_nan=False), Number] = (
        Decimal(1)
    )


class WhenSpent(StrEnum):
    """What becomes of a video's doubtful questions once a budget is spent."""

    REVIEW = "review"
    DEFER = "defer"
    LEAVE_OPEN = "leave_open"


class BudgetPart(Part):
    """An amount of the policy's currency that the VLM may cost, and what happens once it is spent."""

    amount: Price
    when_spent: WhenSpent = WhenSpent.REVIEW


class BudgetsPart(Part):
    """Caps on what the VLM costs; days are UTC days. Not set means no cap."""

    per_video: BudgetPart | None = None
    per_tenant_day: BudgetPart | None = None
    per_day: BudgetPart | None = None

    def when_spent(self, scope: BudgetScope) -> WhenSpent:
        """What becomes of the doubtful questions of a video for which the budget of `scope` is spent."""
        budget: BudgetPart | None = getattr(self, scope.value)
        return WhenSpent.REVIEW if budget is None else budget.when_spent


class CommercialPart(Part):
    """Who answers for the policy, and what things cost: may change without making anything undecided."""

    owner: Annotated[Words, Field(max_length=200)]
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = "USD"
    prices: PricesPart = PricesPart()
    budgets: BudgetsPart = BudgetsPart()
    latency_goal_s: Annotated[float, Field(gt=0, allow_inf_nan=False), Number] = 600.0


def upgraded(document: object) -> object:
    """A document of schema version 1 in the form of version 2; anything else as it is.

    Version 1 priced a review as a whole and a picture for the VLM; its decision part is one of version 2.
    """
    if not isinstance(document, Mapping) or document.get("schema_version") != 1:
        return document
    new: dict[Any, Any] = {**document, "schema_version": 2}
    commercial = document.get("commercial")
    prices = commercial.get("prices") if isinstance(commercial, Mapping) else None
    if isinstance(commercial, Mapping) and isinstance(prices, Mapping):
        new["commercial"] = {**commercial, "prices": _upgraded_prices(prices)}
    return new


def _upgraded_prices(prices: Mapping[Any, Any]) -> dict[Any, Any]:
    new = dict(prices)
    if "review" in new:
        new["review_minute"] = new.pop("review")
    if "vlm_image" in new:
        new["vlm"] = {"token_in": _per_token(new.pop("vlm_image"))}
    return new


def _per_token(price: object) -> object:
    try:
        return round(Decimal(str(price)) / _V1_IMAGE_TOKENS, 12)
    except InvalidOperation:  # no price; the validation says so
        return price
