"""Each experiment in small: what holds for hundreds must hold for a few. Speeds are not judged here."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pipeline import policies
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from tests.fleet import bench, chaos, cost_page, drain, fairness, footage, limits, outages, scaling, stops
from tests.fleet.chaos import Plan
from tests.fleet.stand import Stand, temporary_folder

pytestmark = pytest.mark.timeout(600)


def test_killed_paused_and_restarted_everything_has_one_outcome() -> None:
    plan = Plan(videos=20, kills=3, pauses=1, restarts=2, workers=2, share_poison=0.2, share_slow=0.05, garbage=1)
    with temporary_folder() as folder:
        result = chaos.run(plan, folder)
    assert result["done"]["kill"] == 3
    assert result["done"]["aws kill"] == result["done"]["postgres kill"] == 1
    assert result["account"]["faults"] == {}, result["account"]
    assert result["processes_left_behind"] == 0
    assert set(result["exit_codes_at_the_end"]) <= {0, -signal.SIGTERM}, (
        "one that was killed last may still be starting"
    )
    assert "| holds | " in chaos.page(result)


def test_what_a_video_costs_adds_up_to_what_the_worker_used(tmp_path: Path) -> None:
    with temporary_folder() as folder:
        settings = footage.colour_policy(folder / "weights")
        names = [clip.name for clip in footage.short_clips(folder / "clips")]
        paths = [folder / "clips" / f"{name}.mp4" for name in names]
        policy = policies.load(settings["VIDEOSIEVE_POLICY"])
        models = ModelStore(Registry(folder / "weights", extra_catalog=folder / "weights" / "extra.yaml"))
        bounds = dict.fromkeys(footage.GROUPS, limits.measure(paths, policy, models, rounds=1, usual=0))
        with Stand(folder / "stand", settings) as stand:
            phases = {name: bench.run_phase(stand, name, paths, 20, workers=1) for name in ("web", "mix")}
        result = bench.result_of(1, {"web": paths, "phone": paths}, bounds, phases)
    for name, phase in result["phases"].items():
        stages = cost_page.stages(phase, result["limits"])
        assert sum(stages.values()) == pytest.approx(phase["worker_cpu_s"], rel=0.01)
        assert phase["worker_cpu_s"] > 0
        assert 0 < result["summary"][name]["limit_together_per_s"] < result["summary"][name]["limit_decode_per_s"]
    cost_page.write(result, tmp_path / "cost.md")
    assert "**the worker, all of it**" in (tmp_path / "cost.md").read_text()


def test_a_small_burst_is_drained_and_nothing_of_it_is_lost() -> None:
    with temporary_folder() as folder:
        result = drain.run("burst", 15, 1, folder, ahead=None)
    assert result["ok"], result
    assert result["rows"][-1]["accepted"] == 15
    assert result["growth"]["processes"]["last"] >= 1


@pytest.mark.parametrize("kind", ["s3", "database"])
def test_an_outage_rejects_nobody_and_buries_nothing(kind: str) -> None:
    with temporary_folder() as folder:
        result = outages.run(kind, 6, folder, workers=1, per_s=1.0)
    assert result["account"]["faults"] == {}, result["account"]
    assert result["account"]["dead_letters"] == 0
    assert "rejected" not in result["account"]["states"]
    assert result["workers_that_ended"] == []
    assert result["lane_emptied"]


def test_a_full_disk_rejects_nobody_and_buries_nothing() -> None:
    with temporary_folder() as folder:
        try:
            result = outages.run("disk", 6, folder, workers=1, per_s=1.0)
        except outages.CannotMountError as error:
            pytest.skip(f"a size-limited disk cannot be mounted here: {error}")
    assert result["account"]["faults"] == {}, result["account"]
    assert result["account"]["dead_letters"] == 0
    assert "rejected" not in result["account"]["states"]


def test_one_tenants_flood_does_not_hold_the_others_up() -> None:
    with temporary_folder() as folder:
        result = fairness.run(60, 1, folder, small=3)
    assert result["account"]["faults"] == {}, result
    assert result["left_of_the_flood_then"] > 20, "the others waited for the flood"


def test_workers_stopped_at_random_moments_lose_nothing() -> None:
    with temporary_folder() as folder:
        result = stops.run(3, 3.0, 8, folder)
    assert result["account"]["faults"] == {}, result
    assert result["lane_emptied"], "something waits for a visibility timeout"
    assert result["processes_left_behind"] == 0
    assert {stop["code"] for stop in result["stops"]} <= {0, -15}


def test_a_slow_stage_is_shared_by_two_workers() -> None:
    with temporary_folder() as folder:
        result = scaling.run(2, 6, 0.5, folder)
    assert result["faults"] == {}
    assert result["exit_codes"] == [0, 0]
    assert len(result["held"]) == 2
    assert all(held["connections_to_s3_and_sqs"] >= 1 for held in result["held"])
