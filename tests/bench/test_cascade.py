"""The cascade's benchmark on a few tiny clips: every way gives answers, and the table follows from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import policies
from pipeline.models.catalog import load_catalog
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from pipeline.video.sandbox import DecoderPool
from tests.bench import cascade
from tests.bench.cascade import EVERY_KEYFRAME, ONE_FPS, frames_a_second, measure, variants, write
from tests.bench.cascade_results import Run, summaries
from tests.clips import write_cuts
from tests.road.conftest import colour_clip
from tests.road.conftest import decoders as decoders  # noqa: PLC0414 - a fixture, used by name
from tests.road.conftest import weights as weights  # noqa: PLC0414 - likewise


def run(way: str, clip: str, answers: dict[str, str], *, cpu_s: float = 1.0, stage: str = "cheap") -> Run:
    stages = {question: "review" if answer == "review" else stage for question, answer in answers.items()}
    return Run(way, clip, cpu_s, 2 * cpu_s, 7, 3, answers, stages)


def test_agreement_is_counted_where_both_answered_and_what_only_one_answered_beside() -> None:
    runs = [
        run("ours", "a", {"p": "positive", "q": "review"}),
        run("ours", "b", {"p": "negative", "q": "negative"}, cpu_s=3.0, stage="dear"),
        run("all", "a", {"p": "positive", "q": "negative"}),
        run("all", "b", {"p": "positive", "q": "review"}),
    ]
    ours, every = summaries(runs, reference="all")
    assert (ours.agreed, ours.comparable, ours.alone, ours.missed) == (1, 2, 1, 1)
    assert (every.agreed, every.comparable, every.alone, every.missed) == (3, 3, 0, 0)
    assert ours.decided == {"cheap": 0.25, "dear": 0.5, "review": 0.25}
    assert (ours.cpu_s, ours.videos_per_s) == (2.0, 0.25)
    assert (ours.machine_nano, ours.review_nano) == (7000, 3000)


def test_the_variants_move_only_what_a_later_stage_can_correct(weights: Path) -> None:
    tiers = policies.load(str(weights / "tiers.yaml"))
    gaps = {
        name: [
            (round(rule.positive_at, 6), round(rule.negative_at, 6))
            for stage in policy.decision.stages
            for rule in stage.answers.values()
        ]
        for name, policy in variants(tiers).items()
    }
    assert gaps == {
        "lean": [(0.566667, 0.433333), (0.5, 0.45)],
        "plain": [(0.7, 0.3), (0.5, 0.45)],
        "careful": [(0.85, 0.15), (0.5, 0.45)],
    }
    alone = variants(policies.load(str(weights / "colours.yaml")))
    assert alone["careful"].decision.stages[0].answers["red"].positive_at == pytest.approx(0.85)


def test_a_frame_a_second_is_taken(tmp_path: Path) -> None:
    assert len(list(frames_a_second(write_cuts(tmp_path / "c.mp4", (2.0, 3.0, 2.0))))) == 7


def test_the_benchmark_runs_and_its_dearest_way_agrees_with_itself(
    weights: Path, decoders: DecoderPool, tmp_path: Path
) -> None:
    clips = [colour_clip(tmp_path / f"{red}.mp4", (0, 0, red)) for red in (20, 100, 240)]
    tiers = policies.load(str(weights / "tiers.yaml"))
    models = ModelStore(Registry(weights, extra_catalog=weights / "extra.yaml"))
    runs = measure(tiers, clips, decoders, models, repeats=1)
    found = {one.way: one for one in write(tmp_path, runs, tiers, {"machine": "a small one"})}
    assert list(found) == ["lean", "plain", "careful", EVERY_KEYFRAME, ONE_FPS]
    assert (found[ONE_FPS].agreed, found[ONE_FPS].comparable) == (3, 3)
    assert all(one.agreed == one.comparable == 3 for one in found.values())
    assert [found[way].decided.get("dear", 0) for way in ("lean", EVERY_KEYFRAME)] == [0, 1]
    assert found["plain"].decided["dear"] == pytest.approx(1 / 3)
    assert all(one.cpu_s > 0 and one.machine_nano > 0 for one in found.values())
    document = json.loads((tmp_path / "cascade.json").read_text())
    assert len(document["runs"]) == 15
    assert "| careful |" in (tmp_path / "cascade.md").read_text()


def test_the_benchmarks_own_policy_is_valid_and_pins_the_shipped_catalogue() -> None:
    catalogue = load_catalog()
    policy = policies.load(str(Path(cascade.__file__).with_name("cascade.yaml")))
    for model, pin in policy.decision.models.items():
        assert (pin.weights, pin.reading) == (catalogue[model].sha256, catalogue[model].reading_sha256)
