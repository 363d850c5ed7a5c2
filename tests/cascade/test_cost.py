from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cascade.cascade import run_cascade
from pipeline.cascade.commercial import VlmPricesPart
from pipeline.cascade.cost import bill, nano, review_nano, vlm_nano, worst_case_nano, yardstick_nano
from pipeline.cascade.policy import Policy
from pipeline.cascade.vlm_part import ImagesPart
from pipeline.verdict import VlmUsage
from tests.cascade.fakes import FakeModels, document, numbered, policy, rule, scripted, vlm
from tests.domain.samples import extraction

prices = st.decimals(0, 1_000_000, places=9)


@given(prices, st.floats(0, 1e12) | st.integers(0, 10**15))
def test_money_is_the_exact_product_rounded_to_the_nearest_nano(price: Decimal, quantity: float | int) -> None:
    exact = Fraction(price) * Fraction(repr(quantity)) * 10**9
    assert abs(nano(price, quantity) - exact) <= Fraction(1, 2)


@given(prices, st.integers(0, 10**12))
def test_whole_things_cost_exactly_their_number_times_the_price(price: Decimal, quantity: int) -> None:
    assert nano(price, quantity) == nano(price) * quantity


@pytest.mark.parametrize(("quantity", "rounded"), [(0.5, 0), (1.5, 2), (2.5, 2), (2.500001, 3), (0.4999, 0), (0, 0)])
def test_halves_are_rounded_to_even(quantity: float, rounded: int) -> None:
    assert nano(Decimal("0.000000001"), quantity) == rounded


def test_a_float_means_what_it_prints_and_not_its_binary_neighbour() -> None:
    assert nano(Decimal("0.000000005"), 0.1) == 0
    assert nano(Decimal("0.000000005"), 0.3) == 2
    assert nano(Decimal(1), 0.1 + 0.2) == 300_000_000
    assert nano(Decimal(1), np.float64(0.1)) == 100_000_000


def test_more_digits_than_a_decimal_context_holds_stay_exact() -> None:
    assert nano(Decimal("999999.999999999"), 10**15 + 1) == 999_999_999_999_999 * (10**15 + 1)


def test_money_that_is_no_number_is_an_error_and_not_a_price() -> None:
    for quantity in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Invalid literal"):
            nano(Decimal(1), quantity)


def test_a_bill_adds_up_what_was_spent_and_what_a_vlm_would_have_cost() -> None:
    asked = policy({"cheap": {"p": rule("a"), "q": rule("b")}})
    vlm = VlmPricesPart(token_in=Decimal("0.0000002"), request=Decimal("0.001"))
    prices_part = asked.commercial.prices.model_copy(update={"vlm": vlm})
    asked = asked.model_copy(update={"commercial": asked.commercial.model_copy(update={"prices": prices_part})})
    found = extraction(keyframes=2, frames=1800, cpu_s=0.3)
    tokens = ImagesPart().tokens(found.video.width_px, found.video.height_px)
    outcome = run_cascade(asked, numbered(2), FakeModels(cheap=scripted("cheap", {"a": 0.5}, {"b": 0.5})))
    billed = bill(asked, found, outcome)
    assert (billed.currency, billed.keyframes_nano, billed.stages_nano) == ("EUR", 300_000, 500_000)
    assert billed.review_nano == 2 * 500_000_000
    assert billed.total_nano == 1_000_800_000
    assert billed.vlm_every_frame_nano == 1800 * tokens * 200 + 225 * 1_000_000  # eight pictures a request
    assert billed.vlm_every_keyframe_nano == 2 * tokens * 200 + 1_000_000
    assert all(type(value) is int for value in (billed.total_nano, billed.stages_nano, billed.vlm_every_frame_nano))


token_prices = st.decimals(0, 1, places=12)
counts = st.integers(0, 10**7)
usages = st.builds(VlmUsage, requests=counts, tokens_in=counts, tokens_cached=counts, tokens_out=counts)
vlm_prices = st.builds(
    VlmPricesPart,
    token_in=token_prices,
    token_cached=st.none() | token_prices,
    token_out=token_prices,
    request=token_prices,
)


@given(vlm_prices, usages)
def test_what_a_vlm_costs_is_exact_to_half_a_nano_for_each_kind_of_thing(priced: VlmPricesPart, used: VlmUsage) -> None:
    cached = min(used.tokens_cached, used.tokens_in)
    per_cached = priced.token_in if priced.token_cached is None else priced.token_cached
    exact = (
        Fraction(priced.token_in) * (used.tokens_in - cached)
        + Fraction(per_cached) * cached
        + Fraction(priced.token_out) * used.tokens_out
        + Fraction(priced.request) * used.requests
    )
    assert abs(vlm_nano(priced, used) - exact * 10**9) <= 2


@given(vlm_prices, st.integers(0, 5000), st.integers(1, 3), st.data())
def test_no_usage_within_its_bounds_costs_more_than_the_worst_case(
    priced: VlmPricesPart, text_bytes: int, requests: int, data: st.DataObject
) -> None:
    text = document({"cheap": {"q": rule("a")}}, vlm=vlm("q"))
    text["commercial"]["prices"] = {"vlm": priced.model_dump(mode="json")}
    asked = Policy.model_validate(text)
    most_in = requests * (text_bytes + ImagesPart().max_image_tokens)
    used = VlmUsage(
        requests=requests,
        tokens_in=data.draw(st.integers(0, most_in)),
        tokens_cached=data.draw(st.integers(0, most_in)),
        tokens_out=data.draw(st.integers(0, requests * 512)),
    )
    assert vlm_nano(priced, used) <= worst_case_nano(asked, text_bytes=text_bytes, requests=requests)


def test_a_policy_without_a_vlm_has_no_worst_case() -> None:
    with pytest.raises(ValueError, match="no VLM stage"):
        worst_case_nano(policy({"cheap": {"q": rule("a")}}), text_bytes=1)


def test_whatever_prices_a_policy_may_name_its_amounts_fit_into_the_ledger() -> None:
    """A price beyond them would leave every run undecidable: the ledger refuses what 64 bits do not hold."""
    text = document(
        {"cheap": {"q": rule("a")}},
        vlm=vlm("q", sampling={"max_tokens": 16_384}, images={"max_images": 64, "max_image_tokens": 1_000_000}),
    )
    text["commercial"]["prices"] = {
        "cpu_second": 1000,
        "device_second": 1000,
        "review_minute": 999_999,
        "minutes_per_review": 100,
        "vlm": {"token_in": 1000, "token_cached": 1000, "token_out": 1000, "request": 999_999},
    }
    dearest = Policy.model_validate(text)
    amounts = [
        worst_case_nano(dearest, text_bytes=200_000, requests=2),
        yardstick_nano(dearest, 2**31, 8192, 4320),
        64 * review_nano(dearest.commercial.prices),
        nano(dearest.commercial.prices.cpu_second, 86_400.0),
    ]
    assert all(0 < amount < 2**62 for amount in amounts[:2] + amounts[3:])
    assert amounts[2] < 2**63
