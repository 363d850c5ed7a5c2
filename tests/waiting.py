"""Waiting for something that another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], *, timeout_s: float = 30, every_s: float = 0.05) -> None:
    """Return once `condition()` holds; an assertion fails when `timeout_s` passes first."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {condition}"
        time.sleep(every_s)
