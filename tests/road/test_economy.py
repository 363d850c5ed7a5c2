"""Money goes where it changes an answer: a labelled set of clips, a threshold that moves, and what the ledger says."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline import policies
from pipeline.cascade.cost import caps
from pipeline.cascade.policy import Policy
from pipeline.costs import CostsBy, CostSum
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from pipeline.stores.schema import budgets, runs
from pipeline.verdict import Answer, RunState
from tests.road.conftest import PURPLE, Fleet, colour_clip
from tests.road.test_escalation import escalated, judging, says_yes_to, spend_all, with_vlm
from tests.vlm.server import serving
from tests.waiting import wait_for
from workers.reconcile import reconcile

REDNESS = (20, 60, 95, 110, 150, 165, 200, 240)
"""Of 255: what each clip's red is. From half of 255 it counts as red."""


def moved(policy: Policy, name: str, positive_at: float, negative_at: float) -> Policy:
    document: dict[str, Any] = policy.document() | {"name": name}
    document["decision"]["stages"][0]["answers"]["red"] |= {"positive_at": positive_at, "negative_at": negative_at}
    return Policy.model_validate(document)


def by_stage(fleet: Fleet, policy: str) -> dict[str | None, CostSum]:
    return {found.group: found for found in fleet.services.ledger.costs(CostsBy.STAGE, policy=policy)}


def test_moving_a_threshold_moves_work_between_stages_as_the_ledger_says_and_the_totals_add_up(
    fleet: Fleet, tmp_path: Path
) -> None:
    tiers, ledger = policies.load(str(fleet.weights / "tiers.yaml")), fleet.services.ledger
    gaps = {"narrow": (0.5, 0.49), "middle": (0.66, 0.3), "wide": (0.99, 0.01)}
    clips = {red: colour_clip(tmp_path / f"{red}.mp4", (0, 0, red)) for red in REDNESS}
    with fleet.worker():
        for round_, (name, gap) in enumerate(gaps.items(), start=1):
            policy = moved(tiers, name, *gap)
            ledger.activate_policy(policy.name, policy.decision_hash, policy.document(), who="tester", why="to see")
            keys = {fleet.upload(clip): red for red, clip in clips.items()}
            fleet.wait_until_settled(round_ * len(REDNESS))
            runs = [run for run in fleet.runs() if run.key in keys]
            for run in runs:
                assert (run.policy, run.state) == (name, RunState.DECIDED)
                (verdict,) = run.verdicts
                red = keys[run.key]
                assert verdict.answer is (Answer.POSITIVE if red >= 128 else Answer.NEGATIVE)
                assert verdict.stage == ("dear" if gap[1] < red / 255 < gap[0] else "cheap")
            doubtful = sum(gap[1] < red / 255 < gap[0] for red in REDNESS)
            stages = by_stage(fleet, name)
            assert (stages["dear"].runs if "dear" in stages else 0) == doubtful
            assert stages["cheap"].runs == len(REDNESS)
            assert sum(found.total.money_nano for found in stages.values()) == sum(run.money_nano for run in runs)
            for run in runs:
                assert run.result_key is not None
                document = json.loads(fleet.services.objects.get(fleet.stack.artifacts, run.result_key))
                assert document["money"]["total_nano"] == run.money_nano
                assert sum(stage["images"] for stage in document["stages"]) > 0
    dear = [by_stage(fleet, name).get("dear") for name in gaps]
    assert [0 if found is None else found.runs for found in dear] == [0, 4, 8]
    everything = sum(run.money_nano for run in fleet.runs())
    for by in CostsBy:
        assert sum(found.total.money_nano for found in ledger.costs(by)) == everything


@pytest.mark.parametrize(("red", "loaded"), [(240, ("means",)), (20, ("means",)), (120, ("means", "mid"))])
def test_a_later_model_is_neither_loaded_nor_called_for_what_is_decided(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, red: int, loaded: tuple[str, ...]
) -> None:
    """The worker's real model store, asked what it holds after a video."""
    tiers = policies.load(str(fleet.weights / "tiers.yaml"))
    fleet.services.ledger.activate_policy(tiers.name, tiers.decision_hash, tiers.document(), who="t", why="t")
    stores: list[ModelStore] = []

    def remembered(registry: Registry) -> ModelStore:
        stores.append(ModelStore(registry))
        return stores[0]

    monkeypatch.setattr("tests.road.conftest.ModelStore", remembered)
    fleet.upload(colour_clip(tmp_path / "x.mp4", (0, 0, red)))
    with fleet.worker():
        fleet.wait_until_settled(1)
    assert stores[0].loaded() == tuple(sorted(loaded))


def priced(policy: Policy, cap_nano: int) -> Policy:
    """A policy whose requests cost about what they may at worst, with a budget for each tenant's day."""
    document = with_vlm(policy).document()
    document["decision"]["vlm"]["images"] = {"max_images": 1, "max_pixels": 25_088, "max_image_tokens": 32}
    document["decision"]["vlm"]["sampling"] = {"max_tokens": 64}
    amount = str(Decimal(cap_nano) / 10**9)
    document["commercial"]["budgets"] = {"per_tenant_day": {"amount": amount, "when_spent": "review"}}
    return Policy.model_validate(document)


def test_a_tenant_that_spends_its_day_in_a_burst_over_three_workers_gets_reviews_and_the_others_go_on(
    fleet: Fleet, tmp_path: Path
) -> None:
    ledger = fleet.services.ledger
    cap_nano = 26_000_000  # a worst case, and what six requests really cost
    rich_fleet = replace(fleet, policy=priced(fleet.policy, cap_nano))
    limits, clip = caps(rich_fleet.policy), colour_clip(tmp_path / "purple.mp4", PURPLE)
    owners = {name: ledger.add_tenant(name)[0].id for name in ("burst", "calm")}
    keys = [("burst", f"burst/{number}") for number in range(12)] + [("calm", f"calm/{number}") for number in range(3)]
    for tenant, key in keys:
        ledger.create_upload(
            owners[tenant],
            bucket=fleet.stack.originals,
            key=key,
            filename="x.mp4",
            content_type=None,
            max_bytes=10**6,
            expires_at=datetime.now(UTC) + timedelta(hours=1),
            trace_id=key,
        )
        rich_fleet.upload(clip, key)
    with rich_fleet.worker(has_vlm=True):
        wait_for(lambda: ledger.counts()[RunState.ESCALATED] == len(keys), timeout_s=120)
    seen: list[int] = []

    def is_done() -> bool:
        seen.append(sum(ledger.budget(limits, tenant_id=owners["burst"])))
        return ledger.counts()[RunState.ESCALATED] + ledger.counts()[RunState.PROCESSING] == 0

    with ExitStack() as stack:
        server = stack.enter_context(serving(default=says_yes_to("red")))
        for _ in range(3):
            stack.enter_context(judging(rich_fleet, server, concurrency=2))
        wait_for(is_done, timeout_s=120, every_s=0.01)
    runs = {tenant: [run for run in ledger.runs(limit=100) if run.tenant == tenant] for tenant in owners}
    assert {run.state for run in runs["calm"]} == {RunState.DECIDED}
    states = [run.state for run in runs["burst"]]
    assert states.count(RunState.IN_REVIEW) > 0 < states.count(RunState.DECIDED)
    for run in runs["burst"]:
        reasons = {verdict.reason for verdict in run.verdicts}
        assert reasons == ({"budget_exhausted"} if run.state is RunState.IN_REVIEW else {None})
    spent, held = ledger.budget(limits, tenant_id=owners["burst"])
    assert 0 < spent <= cap_nano
    assert held == 0
    assert max(seen) <= cap_nano
    (judge,) = [found for found in ledger.costs(CostsBy.STAGE) if found.group == "judge"]
    total = sum(ledger.budget(limits, tenant_id=owner)[0] for owner in owners.values())
    assert total == 1000 * judge.total.tokens_in + 10_000 * judge.total.tokens_out  # what the engine counted
    assert 0 < judge.total.money_nano - total < 100_000  # our own processor time, which no budget caps
    for run in (run for of in runs.values() for run in of):
        assert run.result_key is not None
        document = json.loads(fleet.services.objects.get(fleet.stack.artifacts, run.result_key))
        assert document["money"]["total_nano"] == run.money_nano
    assert sum(found.total.money_nano for found in ledger.costs(CostsBy.TENANT)) == sum(
        run.money_nano for run in ledger.runs(limit=100)
    )


def test_a_deferred_run_is_judged_once_its_day_has_come_and_the_sums_agree_all_the_while(
    fleet: Fleet, tmp_path: Path
) -> None:
    policy = with_vlm(fleet.policy, budgets={"per_day": {"amount": 1, "when_spent": "defer"}})
    later, ledger = replace(fleet, policy=policy), fleet.services.ledger
    escalated(later, path=tmp_path)
    spend_all(later)
    with serving(default=says_yes_to("red")) as server, judging(later, server):
        wait_for(lambda: ledger.counts()[RunState.DEFERRED] == 1, timeout_s=60)
        later.wait_until_empty()
        (run,) = later.runs()
        assert sum(found.total.money_nano for found in ledger.costs(CostsBy.STAGE)) == run.money_nano > 0
        with ledger.database.begin() as connection:  # the next day, in UTC, has begun
            connection.execute(sa.update(budgets).values(day=budgets.c.day - 1))
            connection.execute(sa.update(runs).values(due_at=sa.func.now()))
        reconcile(later.services, policy, bucket=later.stack.originals, prefix="", older_than_s=0)
        (run,) = later.wait_until_settled(1)
    assert (run.state, run.attempts, run.faults) == (RunState.DECIDED, 1, 0)
    assert {verdict.stage for verdict in run.verdicts} == {"judge"}
    stages = {found.group: found for found in ledger.costs(CostsBy.STAGE)}
    assert {stage: found.runs for stage, found in stages.items()} == {"keyframes": 1, "detector": 1, "judge": 1}
    assert stages["judge"].total.requests == 1
    assert sum(found.total.money_nano for found in stages.values()) == run.money_nano
    assert ledger.budget(caps(policy)) == (1200 * 1000 + 40 * 10_000, 0)  # of the new day
    assert run.result_key is not None
    document = json.loads(fleet.services.objects.get(fleet.stack.artifacts, run.result_key))
    assert document["money"]["total_nano"] == run.money_nano


def test_a_budget_that_is_raised_holds_for_the_next_request_of_a_worker_that_goes_on(
    fleet: Fleet, tmp_path: Path
) -> None:
    small, large = (with_vlm(fleet.policy, budgets={"per_day": {"amount": amount}}) for amount in (1, 2))
    assert small.decision_hash == large.decision_hash
    poor, ledger = replace(fleet, policy=small), fleet.services.ledger
    escalated(poor, path=tmp_path)
    spend_all(poor)
    with serving(default=says_yes_to("red")) as server, judging(poor, server), poor.worker(has_vlm=True):
        poor.wait_until_settled(1)
        assert ledger.counts()[RunState.IN_REVIEW] == 1
        ledger.activate_policy(large.name, large.decision_hash, large.document(), who="tester", why="to see")
        poor.upload(colour_clip(tmp_path / "second.mp4", PURPLE))
        poor.wait_until_settled(2)
    assert (ledger.counts()[RunState.IN_REVIEW], ledger.counts()[RunState.DECIDED]) == (1, 1)
    assert ledger.budget(caps(large)) == (10**9 + 1200 * 1000 + 40 * 10_000, 0)
