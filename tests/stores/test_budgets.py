"""Budgets that no number of workers can overspend, against a real PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from pipeline.budgets import BudgetBook, BudgetScope, Caps, Exhausted, Reservation
from pipeline.errors import LeaseLostError, Reason
from pipeline.media import ObjectRef
from pipeline.runs import Claimed, Lane
from pipeline.stores.ledger import Ledger
from tests.stores.spending import WORST_NANO
from tests.waiting import wait_for

T = TypeVar("T")
CAPS = Caps("p", "USD", per_video_nano=None, per_tenant_day_nano=1000, per_day_nano=5000)


def run(ledger: Ledger, key: str | None = None, *, bucket: str = "b", lease_s: float = 60) -> Claimed:
    ref = ObjectRef(bucket, key or uuid4().hex, etag="e", size_bytes=1)
    found = ledger.claim(
        ref, policy="p", decision_hash="h", lane=Lane.UPLOADS, worker="w", lease_s=lease_s, trace_id="t", event_at=None
    )
    assert isinstance(found, Claimed)
    return found


def eventually(look: Callable[[], T | None]) -> T:
    """What `look` gives once it gives something."""
    found: list[T] = []

    def is_there() -> bool:
        found.extend([] if (seen := look()) is None else [seen])
        return bool(found)

    wait_for(is_there, timeout_s=10)
    return found[0]


def tenant(ledger: Ledger, name: str, uploads: int, *, bucket: str) -> UUID:
    """A tenant with uploads `0-0` … in `bucket`, as three workers will claim them."""
    owner, _ = ledger.add_tenant(name)
    for worker in range(3):
        for number in range(uploads):
            ledger.create_upload(
                owner.id,
                bucket=bucket,
                key=f"{worker}-{number}",
                filename="x.mp4",
                content_type=None,
                max_bytes=10,
                expires_at=datetime.now(UTC) + timedelta(hours=1),
                trace_id="t",
            )
    return owner.id


def reserve(ledger: Ledger, claim: Claimed, amount: int, caps: Caps = CAPS) -> Reservation | Exhausted:
    return ledger.reserve(claim.run_id, claim.fence, caps=caps, amount_nano=amount)


def held(ledger: Ledger, claim: Claimed, amount: int, caps: Caps = CAPS) -> Reservation:
    found = reserve(ledger, claim, amount, caps)
    assert isinstance(found, Reservation)
    return found


def test_the_ledger_is_a_budget_book(ledger: Ledger) -> None:
    book: BudgetBook = ledger
    assert book is ledger


def test_what_is_reserved_counts_until_it_is_settled_for_what_was_spent(ledger: Ledger) -> None:
    claim = run(ledger)
    reservation = held(ledger, claim, 400)
    assert ledger.budget(CAPS) == (0, 400)
    ledger.settle(reservation, 150)
    ledger.settle(reservation, 150)
    assert ledger.budget(CAPS) == (150, 0)
    with ledger.database.begin() as connection:
        kept = connection.execute(sa.text("SELECT amount_nano, actual_nano FROM reservations")).one()
    assert tuple(kept) == (400, 150)


@pytest.mark.parametrize(("wanted", "fits"), [(600, True), (601, False)])
def test_a_budget_can_be_spent_to_the_last_nano_and_no_further(ledger: Ledger, wanted: int, fits: bool) -> None:
    claim = run(ledger)
    ledger.settle(held(ledger, claim, 400), 400)
    found = reserve(ledger, claim, wanted)
    assert isinstance(found, Reservation) == fits
    if isinstance(found, Exhausted):
        assert (found.scope, found.cap_nano, found.spent_nano) == (BudgetScope.PER_TENANT_DAY, 1000, 400)
        assert found.resets_in_s is not None
        assert 0 < found.resets_in_s <= 86400
        assert not found.is_held_only
        assert ledger.budget(CAPS) == (400, 0)  # nothing half reserved


def test_a_videos_own_budget_counts_all_its_attempts(ledger: Ledger) -> None:
    caps = Caps("p", "USD", per_video_nano=100)
    claim = run(ledger, "v", lease_s=0.2)
    ledger.settle(held(ledger, claim, 60, caps), 50)
    again = eventually(lambda: _claim_again(ledger, "v"))
    found = reserve(ledger, again, 51, caps)
    assert isinstance(found, Exhausted)
    assert (found.scope, found.spent_nano, found.resets_in_s) == (BudgetScope.PER_VIDEO, 50, None)
    assert isinstance(reserve(ledger, again, 50, caps), Reservation)
    assert isinstance(reserve(ledger, run(ledger), 100, caps), Reservation)


def _claim_again(ledger: Ledger, key: str) -> Claimed | None:
    ref = ObjectRef("b", key, etag="e", size_bytes=1)
    found = ledger.claim(
        ref, policy="p", decision_hash="h", lane=Lane.UPLOADS, worker="w", lease_s=60, trace_id="t", event_at=None
    )
    return found if isinstance(found, Claimed) else None


def test_one_tenants_spent_budget_leaves_the_others_alone(ledger: Ledger) -> None:
    tenant(ledger, "poor", 1, bucket="poor")
    tenant(ledger, "rich", 1, bucket="rich")
    poor, rich, nobody = run(ledger, "0-0", bucket="poor"), run(ledger, "0-0", bucket="rich"), run(ledger)
    held(ledger, poor, 1000)
    assert isinstance(reserve(ledger, poor, 1), Exhausted)
    for other in (rich, nobody):
        assert isinstance(reserve(ledger, other, 1000), Reservation)


def test_the_days_budget_holds_for_all_tenants_together(ledger: Ledger) -> None:
    caps = Caps("p", "USD", per_day_nano=100)
    tenant(ledger, "poor", 1, bucket="poor")
    held(ledger, run(ledger), 60, caps)
    found = reserve(ledger, run(ledger, "0-0", bucket="poor"), 41, caps)
    assert isinstance(found, Exhausted)
    assert (found.scope, found.reserved_nano) == (BudgetScope.PER_DAY, 60)
    assert found.is_held_only  # it may come back


def test_what_was_reserved_before_midnight_is_settled_on_the_day_it_was_reserved(ledger: Ledger) -> None:
    reservation = held(ledger, run(ledger), 900)
    yesterday = "UPDATE {} SET day = day - 1"
    with ledger.database.begin() as connection:  # the day has ended while the engine was asked
        for table in ("budgets", "reservations"):
            connection.execute(sa.text(yesterday.format(table)))
    other = held(ledger, run(ledger), 1000)  # the new day's budget is whole
    ledger.settle(reservation, 500)
    assert ledger.budget(CAPS) == (0, 1000)
    ledger.settle(other, 1)
    assert ledger.budget(CAPS) == (1, 0)
    with ledger.database.begin() as connection:
        spent = connection.execute(
            sa.text("SELECT spent_nano, reserved_nano FROM budgets WHERE day < CURRENT_DATE")
        ).all()
    assert {tuple(row) for row in spent} == {(500, 0)}


def test_policies_and_currencies_have_budgets_of_their_own(ledger: Ledger) -> None:
    claim = run(ledger)
    held(ledger, claim, 1000)
    for caps in (Caps("other", "USD", per_day_nano=1000), Caps("p", "EUR", per_day_nano=1000)):
        assert isinstance(reserve(ledger, claim, 1000, caps), Reservation)


def test_without_caps_everything_is_counted_and_nothing_refused(ledger: Ledger) -> None:
    caps = Caps("p", "USD")
    claim = run(ledger)
    held(ledger, claim, 10**15, caps)
    assert ledger.budget(caps) == (0, 10**15)


def test_a_reservation_ends_with_the_lease_of_the_worker_that_died(ledger: Ledger) -> None:
    dead = run(ledger, "v", lease_s=2)
    held(ledger, dead, 1000)
    other = run(ledger)
    assert isinstance(reserve(ledger, other, 1), Exhausted)  # its lease is alive
    found = eventually(lambda: _reserved(ledger, other, 1000))
    assert ledger.budget(CAPS) == (0, 1000)
    ledger.settle(found, 10)
    assert ledger.budget(CAPS) == (10, 0)


def _reserved(ledger: Ledger, claim: Claimed, amount: int) -> Reservation | None:
    found = reserve(ledger, claim, amount)
    return found if isinstance(found, Reservation) else None


def test_a_reservation_does_not_outlive_a_new_fence_of_its_run(ledger: Ledger) -> None:
    held(ledger, run(ledger, "v", lease_s=0.2), 1000)
    again = eventually(lambda: _claim_again(ledger, "v"))
    assert isinstance(reserve(ledger, again, 1000), Reservation)


def test_a_reservation_ends_with_the_run_that_was_given_back(ledger: Ledger) -> None:
    claim = run(ledger)
    held(ledger, claim, 1000)
    ledger.release(claim.run_id, claim.fence, reason=Reason.GIVEN_BACK, detail="", fault=False, hidden_s=0)
    assert isinstance(reserve(ledger, run(ledger), 1000), Reservation)


def test_what_a_late_worker_spent_is_counted_though_its_reservation_expired(ledger: Ledger) -> None:
    claim = run(ledger)
    late = held(ledger, claim, 1000)
    ledger.release(claim.run_id, claim.fence, reason=Reason.GIVEN_BACK, detail="", fault=False, hidden_s=0)
    assert ledger.expire(CAPS) == 1
    ledger.settle(late, 300)
    assert ledger.budget(CAPS) == (300, 0)


def test_who_lost_the_run_reserves_nothing(ledger: Ledger) -> None:
    claim = run(ledger)
    with pytest.raises(LeaseLostError):
        ledger.reserve(claim.run_id, claim.fence + 1, caps=CAPS, amount_nano=1)
    with pytest.raises(LeaseLostError):
        ledger.reserve(uuid4(), 1, caps=CAPS, amount_nano=1)
    assert ledger.budget(CAPS) == (0, 0)


@pytest.mark.parametrize("amount", [-1, -(10**9)])
def test_no_negative_amount_makes_room_in_a_budget(ledger: Ledger, amount: int) -> None:
    claim = run(ledger)
    with pytest.raises(ValueError, match="negative"):
        reserve(ledger, claim, amount)
    with pytest.raises(ValueError, match="less than nothing"):
        ledger.settle(held(ledger, claim, 5), amount)


def test_threads_that_reserve_at_once_get_exactly_what_the_budget_holds(database_url: str) -> None:
    ledger = Ledger.connect(database_url, pool_size=8)
    claims = [run(ledger) for _ in range(40)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda claim: reserve(ledger, claim, 99), claims))
    assert sum(isinstance(one, Reservation) for one in found) == 10
    assert ledger.budget(CAPS) == (0, 990)
    ledger.close()


def test_three_workers_never_overspend_in_a_burst_and_the_other_tenant_goes_on(
    database_url: str, ledger: Ledger
) -> None:
    """Spent and reserved are watched from outside all the while: their sum never passes a budget."""
    each, tenant_cap, day_cap = 20, 1500, 12_000
    poor = tenant(ledger, "poor", each, bucket="poor")
    tenant(ledger, "rich", 0, bucket="none")  # the bucket `rich` belongs to nobody: a subject of its own
    caps = Caps("p", "USD", per_tenant_day_nano=tenant_cap, per_day_nano=day_cap)
    command = [sys.executable, "-m", "tests.stores.spending", database_url]
    commands = [[*command, str(seed), str(each), str(tenant_cap), str(day_cap)] for seed in range(3)]
    seen: list[tuple[int, int]] = []
    with ThreadPoolExecutor(3) as threads:
        workers = [threads.submit(subprocess.check_output, command) for command in commands]
        while not all(worker.done() for worker in workers):
            seen.append((sum(ledger.budget(caps, tenant_id=poor)), sum(ledger.budget(caps))))
        lines = [json.loads(line) for worker in workers for line in worker.result().splitlines()]
    assert max(of_poor for of_poor, _ in seen) <= tenant_cap
    assert max(of_all for _, of_all in seen) <= day_cap
    assert len(set(seen)) > 3  # it was really watched while it went on
    spent = {bucket: [actual for of, actual in lines if of == bucket] for bucket in ("poor", "rich")}
    assert [len(of) for of in spent.values()] == [3 * each, 3 * each]
    total = sum(actual or 0 for actual in spent["poor"])
    assert tenant_cap - WORST_NANO < total <= tenant_cap  # used up, and not a nano more
    assert None in spent["poor"]
    assert ledger.budget(caps, tenant_id=poor) == (total, 0)
    assert ledger.budget(caps)[0] == total + sum(actual or 0 for actual in spent["rich"])
