from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cascade.cascade import run_cascade
from pipeline.cascade.cost import bill, nano
from tests.cascade.fakes import FakeModels, numbered, policy, rule, scripted
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
    prices_part = asked.commercial.prices.model_copy(update={"vlm_image": Decimal("0.00025")})
    asked = asked.model_copy(update={"commercial": asked.commercial.model_copy(update={"prices": prices_part})})
    found = extraction(keyframes=2, frames=1800, cpu_s=0.3)
    outcome = run_cascade(asked, numbered(2), FakeModels(cheap=scripted("cheap", {"a": 0.5}, {"b": 0.5})))
    billed = bill(asked, found, outcome)
    assert (billed.currency, billed.keyframes_nano, billed.stages_nano) == ("EUR", 300_000, 500_000)
    assert billed.review_nano == 2 * 500_000_000
    assert billed.total_nano == 1_000_800_000
    assert (billed.vlm_every_frame_nano, billed.vlm_every_keyframe_nano) == (450_000_000, 500_000)
    assert all(type(value) is int for value in (billed.total_nano, billed.stages_nano, billed.vlm_every_frame_nano))
