"""Whole nano-units of a currency as text, without losing a unit. Pure."""

from __future__ import annotations

_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "KRW": "₩"}
_NANO_PER_UNIT = 1_000_000_000


def money_text(amount_nano: int, currency: str) -> str:
    """`amount_nano` exactly: at least two decimals, as many as it takes, thousands grouped.

    `money_text(123_000, "USD")` is `$0.000123`; a currency without a symbol of its own reads `CHF 0.000123`.
    """
    whole, rest = divmod(abs(amount_nano), _NANO_PER_UNIT)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    sign = "−" if amount_nano < 0 else ""
    symbol = _SYMBOLS.get(currency)
    prefix = symbol or f"{currency} "
    return f"{sign}{prefix}{whole:,}.{decimals}"


def times_text(dividend: int, divisor: int) -> str:
    """How many times `divisor` goes into `dividend`, to three significant digits: `1,230×`, `45.6×`, `1.20×`.

    Both must be positive.
    """
    ratio = float(f"{dividend / divisor:.3g}")
    if ratio < 1:
        return f"{ratio:.2g}×"
    decimals = 0 if ratio >= 100 else 1 if ratio >= 10 else 2
    return f"{ratio:,.{decimals}f}×"
