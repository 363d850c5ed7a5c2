"""Sums of costs that add up exactly, against a real PostgreSQL."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import sqlalchemy as sa

from pipeline.costs import CostsBy, CostSum, StageCost
from pipeline.media import ObjectRef
from pipeline.runs import Claimed, Commit, Lane
from pipeline.stores.ledger import Ledger
from pipeline.stores.schema import stage_costs
from pipeline.verdict import RunState


def spend(
    ledger: Ledger, *costs: StageCost, policy: str = "p", currency: str = "USD", bucket: str = "b", key: str = ""
) -> Claimed:
    ref = ObjectRef(bucket, key or uuid4().hex, etag="e", size_bytes=1)
    found = ledger.claim(
        ref, policy=policy, decision_hash="h", lane=Lane.UPLOADS, worker="w", lease_s=60, trace_id="t", event_at=None
    )
    assert isinstance(found, Claimed)
    ledger.commit(found.run_id, found.fence, Commit(RunState.DECIDED, currency=currency, costs=costs))
    return found


def upload(ledger: Ledger, tenant: str, bucket: str, keys: int) -> None:
    owner, _ = ledger.add_tenant(tenant)
    for number in range(keys):
        ledger.create_upload(
            owner.id,
            bucket=bucket,
            key=str(number),
            filename="x",
            content_type=None,
            max_bytes=1,
            expires_at=datetime.now(UTC) + timedelta(hours=1),
            trace_id="t",
        )


def groups(sums: list[CostSum]) -> dict[str | None, int]:
    return {found.group: found.total.money_nano for found in sums}


def test_costs_are_summed_by_tenant_policy_stage_and_day(ledger: Ledger) -> None:
    upload(ledger, "acme", "of-acme", 1)
    spend(ledger, StageCost("keyframes", money_nano=5, bytes=9), StageCost("mid", "m", money_nano=7, images=3))
    spend(ledger, StageCost("keyframes", money_nano=11), policy="q", bucket="of-acme", key="0")
    assert groups(ledger.costs(CostsBy.TENANT)) == {"acme": 11, None: 12}
    assert groups(ledger.costs(CostsBy.POLICY)) == {"p": 12, "q": 11}
    assert groups(ledger.costs(CostsBy.STAGE)) == {"keyframes": 16, "mid": 7}
    today = datetime.now(UTC).date().isoformat()
    (day,) = ledger.costs(CostsBy.DAY)
    assert (day.group, day.runs, day.total.money_nano) == (today, 2, 23)
    assert (day.total.bytes, day.total.images) == (9, 3)


def test_currencies_are_never_added_together(ledger: Ledger) -> None:
    spend(ledger, StageCost("keyframes", money_nano=5))
    spend(ledger, StageCost("keyframes", money_nano=7), currency="EUR")
    found = ledger.costs(CostsBy.STAGE)
    assert [(one.group, one.currency, one.total.money_nano) for one in found] == [
        ("keyframes", "EUR", 7),
        ("keyframes", "USD", 5),
    ]


def test_only_the_time_and_the_policy_that_were_asked_for_count(ledger: Ledger) -> None:
    for days, policy in ((0, "p"), (2, "p"), (4, "q")):
        run = spend(ledger, StageCost("keyframes", money_nano=10**days), policy=policy)
        with ledger.database.begin() as connection:
            back = sa.update(stage_costs).where(stage_costs.c.run_id == run.run_id)
            connection.execute(back.values(at=sa.func.now() - timedelta(days=days)))
    now = datetime.now(UTC)
    assert sum(groups(ledger.costs(CostsBy.DAY, since=now - timedelta(days=3))).values()) == 101
    assert sum(groups(ledger.costs(CostsBy.DAY, until=now - timedelta(days=1))).values()) == 10_100
    assert groups(ledger.costs(CostsBy.POLICY, policy="q")) == {"q": 10_000}
    assert len(ledger.costs(CostsBy.DAY)) == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_totals_add_up_exactly_however_they_are_grouped(ledger: Ledger, seed: int) -> None:
    """Amounts far beyond what a float holds exactly; runs, stages and every grouping give the same sum."""
    chance = random.Random(seed)  # noqa: S311
    upload(ledger, "acme", "of-acme", 6)
    expected = 0
    for number in range(12):
        costs = [
            StageCost(
                chance.choice(["keyframes", "detector", "judge"]),
                money_nano=chance.randint(0, 10**17),
                cpu_s=chance.random(),
                tokens_in=chance.randint(0, 10**12),
            )
            for _ in range(chance.randint(1, 4))
        ]
        expected += sum(cost.money_nano for cost in costs)
        where = ("of-acme", str(number)) if number < 6 else ("b", "")
        spend(ledger, *costs, policy=chance.choice("pq"), bucket=where[0], key=where[1])
    for by in CostsBy:
        assert sum(groups(ledger.costs(by)).values()) == expected
    assert sum(run.money_nano for run in ledger.runs()) == expected


def test_a_million_runs_worth_of_rows_would_be_served_by_an_index(ledger: Ledger) -> None:
    with ledger.database.begin() as connection:
        connection.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plan = connection.execute(
            sa.text("EXPLAIN SELECT sum(money_nano) FROM stage_costs WHERE at >= now() - interval '1 day'")
        ).scalars()
        assert any("ix_stage_costs_at" in line for line in plan)
