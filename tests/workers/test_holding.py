from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.holding import GLANCE_S, GROWS_AFTER, MOST_S, SOON_S, Pace, glance_s, grown_s


def test_what_is_begun_soon_is_what_was_begun_lately() -> None:
    pace = Pace()
    assert pace.soon(0.0) == 0
    for at_s in (1.0, 2.0, 2.5, 3.0):
        pace.began(at_s)
    assert pace.soon(3.0) == 4
    assert pace.soon(3.5 + SOON_S - 1.0) == 2
    assert pace.soon(100.0) == 0


def test_looking_again_at_what_waits_takes_at_most_so_many_requests_however_many_wait() -> None:
    assert glance_s(0) == GLANCE_S
    for waiting in (10, 100, 1000, 4000, 20_000):
        assert waiting / glance_s(waiting) <= 100


@given(held_s=st.floats(1, 60), receive_count=st.integers(0, 10_000))
def test_what_came_often_is_hidden_for_longer_and_never_for_shorter(held_s: float, receive_count: int) -> None:
    grown = grown_s(held_s, receive_count)
    if receive_count <= GROWS_AFTER:
        assert grown is None
    elif grown is not None:
        assert held_s * 1.5 <= grown <= MOST_S


def test_ten_days_of_waiting_alone_take_fewer_receives_than_the_queue_bears() -> None:
    waited_s, receives = 0.0, 0
    while waited_s < 10 * 86_400:
        receives += 1
        waited_s += grown_s(GLANCE_S, receives) or GLANCE_S
    assert receives < 900
