"""Values out of result documents, whatever is in them. Pure.

Documents hold file names, codec names and warnings that come from uploads, and may be older than this code: what
is missing, of another type or implausible reads as nothing, and text cannot disguise itself.
"""

from __future__ import annotations

import math
import unicodedata
from typing import Any

MAX_TEXT_CHARS = 300
_MAX_WHOLE = 10**24  # a million billion units of money, in nano-units
_JOINERS = {"\u200c", "\u200d"}  # without them emoji and several scripts fall apart
_UNREADABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def mapping(value: object) -> dict[str, Any]:
    """`value` where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """`value` where it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def number(value: object) -> float | None:
    """`value` where it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        plain = float(value)
    except OverflowError:
        return None
    return plain if math.isfinite(plain) else None


def whole(value: object) -> int | None:
    """`value` where it is an integer of a plausible size."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_WHOLE:
        return None
    return value


def count(value: object) -> int:
    """`value` where it is a plausible integer above 0, else 0."""
    return max(0, whole(value) or 0)


def score(value: object) -> float:
    """`value` kept within 0..1; 0 where it is no number."""
    return min(1.0, max(0.0, number(value) or 0.0))


def text(value: object) -> str:
    """`value` where it is a string, at most `MAX_TEXT_CHARS` long, with nothing invisible in it.

    Control characters, changes of writing direction and lone surrogates are spelled out as `\\u202e`: a file name
    can then neither imitate another nor break the page's encoding.
    """
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        value = f"{value[:half]}…{value[-half:]}"
    return "".join(_spelled_out(char) for char in value)


def _spelled_out(char: str) -> str:
    if char in _JOINERS or unicodedata.category(char) not in _UNREADABLE:
        return char
    return f"\\u{ord(char):04x}"
