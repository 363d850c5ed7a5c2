"""How tables and money look on a terminal."""

from __future__ import annotations

from decimal import Decimal

from rich.console import Console
from rich.text import Text

_PIPED_WIDTH = 200
"""Columns of a table that goes to a file or a pipe, where nothing has to fit a window."""


def stdout() -> Console:
    """The console for results; wide where it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def shown(text: str) -> Text:
    """A name from outside, on one line and without what a terminal would obey."""
    return Text("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def brief_money(amount_nano: int, currency: str) -> str:
    """Two decimals, or where that would hide it, two significant digits: `USD 0.10`, `USD 0.0000012`."""
    amount = Decimal(amount_nano) / 1_000_000_000
    digits = 2 if amount == 0 else max(2, 1 - amount.adjusted())
    return f"{currency} {amount:.{digits}f}"
