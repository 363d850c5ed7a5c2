"""Whole nano-units of a currency as text for people; documents have every unit. Pure."""

from __future__ import annotations

_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "KRW": "₩"}
_NANO_PER_UNIT = 1_000_000_000


def money_text(amount_nano: int, currency: str) -> str:
    """Two decimals, more where three significant digits take them, thousands grouped; rounded half up.

    `money_text(123_456, "USD")` is `$0.000123`; a currency without a symbol of its own reads `CHF 0.000123`.
    """
    digits = max(2, min(9, 12 - len(str(abs(amount_nano)))))
    step = 10 ** (9 - digits)
    whole, rest = divmod((abs(amount_nano) + step // 2) // step * step, _NANO_PER_UNIT)
    decimals = f"{rest:09d}"[:digits].rstrip("0").ljust(2, "0")
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
