"""Money goes where it changes an answer: a labelled set of clips, a threshold that moves, and what the ledger says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import policies
from pipeline.cascade.policy import Policy
from pipeline.costs import CostsBy, CostSum
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from pipeline.verdict import Answer, RunState
from tests.road.conftest import Fleet, colour_clip

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
