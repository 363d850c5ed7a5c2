from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.fairness import WaitingRoom, tenant_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    tenant: str
    name: str = ""
    hidden_until_s: float = 60.0
    sent_at: datetime = NOW
    size_bytes: int = 100


def room(*tenants: str, shares: tuple[float, ...] = (0.0,)) -> WaitingRoom[Waiter]:
    made = WaitingRoom[Waiter](shares)
    for number, tenant in enumerate(tenants):
        made.add(0, Waiter(tenant, str(number)))
    return made


def begin_all(waiting: WaitingRoom[Waiter]) -> list[str]:
    begun = []
    while (waiter := waiting.begin({}, most_per_tenant=99)) is not None:
        begun.append(waiter.tenant)
    return begun


def test_ten_tenants_with_one_each_come_next_however_many_one_has_waiting_before_them() -> None:
    waiting = room(*["big"] * 2000, *[f"small-{n}" for n in range(10)])
    flying = Counter({"big": 3})
    first = [waiting.begin(flying, most_per_tenant=99) for _ in range(10)]
    assert [waiter.tenant for waiter in first if waiter] == [f"small-{n}" for n in range(10)]


def test_tenants_with_as_much_in_flight_take_turns_and_their_own_order_is_kept() -> None:
    waiting = room("a", "a", "a", "b", "b", "c")
    assert begin_all(waiting) == ["a", "b", "c", "a", "b", "a"]


def test_a_tenant_who_has_as_much_in_flight_as_anybody_may_has_to_wait() -> None:
    waiting = room("big", "big", "small")
    waiter = waiting.begin({"big": 3}, most_per_tenant=3)
    assert waiter is not None
    assert waiter.tenant == "small"
    assert waiting.begin({"big": 3}, most_per_tenant=3) is None
    assert len(waiting) == 2


def test_what_was_sent_first_is_begun_first_whenever_it_came() -> None:
    waiting = WaitingRoom[Waiter]((0.0,))
    for age_s in (3, 1, 9, 9, 5):
        waiting.add(0, Waiter("a", f"{age_s}", sent_at=NOW - timedelta(seconds=age_s)))
    waiting.add(0, Waiter("a", "gone", hidden_until_s=1.0, sent_at=NOW - timedelta(seconds=7)))
    assert [waiter.name for waiter in waiting.drop_expired(2.0)] == ["gone"]
    begun = [waiting.begin({}, most_per_tenant=9) for _ in range(5)]
    assert [waiter.name for waiter in begun if waiter] == ["9", "9", "5", "3", "1"]
    assert (len(waiting), waiting.size_bytes) == (0, 0)


def test_a_single_tenant_gets_every_place() -> None:
    assert begin_all(room(*["only"] * 5)) == ["only"] * 5


def test_what_others_may_receive_by_now_is_dropped_and_the_rest_is_kept() -> None:
    waiting = WaitingRoom[Waiter]([0.0])
    for until_s in (10.0, 20.0, 30.0):
        waiting.add(0, Waiter("a", str(until_s), until_s))
    assert [waiter.name for waiter in waiting.drop_expired(20.0)] == ["10.0", "20.0"]
    assert (len(waiting), waiting.size_bytes) == (1, 100)
    assert [waiter.name for waiter in waiting.take_all()] == ["30.0"]
    assert (len(waiting), waiting.size_bytes, list(waiting)) == (0, 0, [])


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.5])
def test_a_later_lane_gets_its_share_of_the_starts_and_no_more_while_the_first_has_work(share: float) -> None:
    waiting = WaitingRoom[Waiter]([0.0, share])
    for number in range(1000):
        waiting.add(0, Waiter("u", f"u{number}"))
        waiting.add(1, Waiter("b", f"b{number}"))
    begun = Counter(waiter.tenant for _ in range(1000) if (waiter := waiting.begin({}, most_per_tenant=99)))
    assert begun["b"] == pytest.approx(1000 * share, abs=2)


def test_a_later_lane_gets_everything_while_the_first_is_empty_and_saves_nothing_up() -> None:
    waiting = WaitingRoom[Waiter]([0.0, 0.1])
    for number in range(50):
        waiting.add(1, Waiter("b", str(number)))
    assert begin_all(waiting) == ["b"] * 50
    for number in range(30):
        waiting.add(0, Waiter("u", str(number)))
        waiting.add(1, Waiter("b", str(number)))
    begun = [waiter.tenant for _ in range(20) if (waiter := waiting.begin({}, most_per_tenant=99))]
    assert begun.count("b") <= 3


@pytest.mark.parametrize("shares", [[], [0.0, 1.0], [0.0, 0.6, 0.4], [0.0, -0.1], [0.0, 1.1]])
def test_shares_that_leave_the_first_lane_nothing_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        WaitingRoom(shares)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.integers(0, 5)), max_size=60),
    st.lists(st.integers(0, 6), max_size=80),
)
def test_nothing_is_lost_or_begun_twice_whatever_happens(arrivals: list[tuple[int, str, int]], acts: list[int]) -> None:
    waiting = WaitingRoom[Waiter]([0.0, 0.2, 0.3])
    added, out = [], []
    for lane, tenant, until_s in arrivals:
        added.append(Waiter(tenant, hidden_until_s=until_s))
        waiting.add(lane, added[-1])
    for act in acts:
        if act == 6:
            out += waiting.drop_expired(act)
        elif (waiter := waiting.begin({"a": 1}, most_per_tenant=max(1, act))) is not None:
            out.append(waiter)
    assert waiting.size_bytes == 100 * len(waiting) == 100 * sum(waiting.waiting(lane) for lane in range(3))
    out += waiting.take_all()
    assert sorted(map(id, out)) == sorted(map(id, added))


@pytest.mark.parametrize(
    ("key", "tenant"),
    [
        ("uploads/4f8a/5b/clip.mp4", "4f8a"),
        ("customer-7/2026/clip.mp4", "customer-7"),
        ("clip.mp4", "-"),
        ("/clip.mp4", "-"),
        ("uploads/clip.mp4", "uploads"),
        ("", "-"),
    ],
)
def test_the_tenant_is_in_an_uploads_key_else_the_first_folder(key: str, tenant: str) -> None:
    assert tenant_of(key) == tenant


@given(st.text(max_size=300))
def test_every_key_gives_a_name_that_sqs_takes_as_a_message_group(key: str) -> None:
    assert re.fullmatch(r"[!-~]{1,128}", tenant_of(key))


def test_names_that_sqs_would_not_take_stay_different() -> None:
    assert tenant_of("ä/clip.mp4") != tenant_of("ö/clip.mp4")
