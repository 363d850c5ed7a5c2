"""How long a message that was received is hidden from other workers before its work begins. Pure.

Long enough that what is begun soon stays here; short enough that what must wait goes to whoever has nothing to do.
"""

from __future__ import annotations

from collections import deque

HOLD_S = 30.0
"""How long what will be begun soon is hidden by being received. What was not begun by then anybody may receive."""
SOON_S = 2.0
GLANCE_S, GLANCES_PER_S = 3.0, 100.0
"""What will not be begun within `SOON_S` is hidden for a moment only, so that a worker without work gets it; a second
longer for every hundred that wait, which bounds the requests for looking at them again."""
GROWTH, GROWS_AFTER, MOST_S = 1.1, 10, 1200.0
"""A message that came often is hidden for longer, so that ten days of waiting for its turn do not use up the queue's
`maxReceiveCount` of 1000."""
LOOK_BACK = 1000
"""Of how many starts the times are known."""


class Pace:
    """How fast work is begun here. Not thread-safe; times in seconds on one clock."""

    def __init__(self) -> None:
        self._begun_s: deque[float] = deque(maxlen=LOOK_BACK)

    def began(self, now_s: float) -> None:
        self._begun_s.append(now_s)

    def soon(self, now_s: float) -> int:
        """How many will be begun within `SOON_S`, if it goes on as it did."""
        return sum(now_s - begun_s <= SOON_S for begun_s in self._begun_s)


def glance_s(waiting: int) -> float:
    """How long a message is hidden that has to wait behind `waiting` others."""
    return GLANCE_S + waiting / GLANCES_PER_S


def grown_s(held_s: float, receive_count: int) -> float | None:
    """How long a message that came so often is hidden instead of `held_s`; None where it makes little difference."""
    grown = min(MOST_S, held_s * GROWTH ** min(receive_count - GROWS_AFTER, 1000))
    return grown if grown >= held_s * 1.5 else None
