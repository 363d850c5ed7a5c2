"""Bars on a logarithmic scale: amounts that lie a million apart, side by side. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: `kind` is `part`, `total` or `yardstick`; `width_pct` is 0 for nothing."""

    label: str
    amount: str
    kind: str
    width_pct: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Amount:
    """What a bar stands for, before it has a width."""

    label: str
    value: int
    text: str
    kind: str = "part"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows that share one scale; `lines_pct` are its powers of ten. Empty where every amount is nothing."""

    bars: tuple[Bar, ...]
    lines_pct: tuple[float, ...]


def log_chart(amounts: Sequence[Amount]) -> Chart:
    """Bars from one power of ten below the smallest amount to the one above the largest."""
    positive = [amount.value for amount in amounts if amount.value > 0]
    if not positive:
        return Chart((), ())
    low = math.floor(math.log10(min(positive))) - 1
    high = max(low + 2, math.ceil(math.log10(max(positive))))
    decades = high - low
    return Chart(
        bars=tuple(
            Bar(
                label=amount.label,
                amount=amount.text,
                kind=amount.kind,
                width_pct=round(100 * (math.log10(amount.value) - low) / decades, 2) if amount.value > 0 else 0.0,
                note=amount.note,
            )
            for amount in amounts
        ),
        lines_pct=tuple(round(100 * line / decades, 2) for line in range(1, decades)),
    )
