"""What a video costs the fleet, and how many it takes a second: `make bench-fleet`.

    python -m tests.fleet.bench [--quick] [--corpus DIR] [--workers 1] [--videos 120] [--set NAME=VALUE …]

Two phases, web clips alone and web and phone clips in equal parts. In each the lane is filled through S3's own events,
then real workers on real weights drain it. What they use is counted between the first and the last few videos, so
that neither their start nor their end counts. The limits are measured before, in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline import policies
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from tests.fleet import cost_page, footage, limits
from tests.fleet.load import put
from tests.fleet.processes import own_cpu_s, tree_cpu_s, usage
from tests.fleet.reports import FOLDER, say, write_json
from tests.fleet.sampling import Row, Sampler
from tests.fleet.stand import Stand, temporary_folder
from tests.fleet.worker import Samples
from workers.analysis import models_dir
from workers.settings import Settings

STAGE_CPU = "videosieve_stage_cpu_seconds_total"


@dataclass(frozen=True, slots=True)
class Mark:
    """Counters at one moment: settled videos, CPU seconds of each party, the workers' metrics."""

    at_s: float
    settled: int
    parent_s: float
    children_s: float
    stand_ins_s: dict[str, float]
    metrics: Samples

    @classmethod
    def now(cls, stand: Stand, settled: int) -> Mark:
        pids = [worker.pid for worker in stand.living()]
        parent_s = sum(map(own_cpu_s, pids))
        return cls(
            at_s=time.monotonic(),
            settled=settled,
            parent_s=parent_s,
            children_s=tree_cpu_s(*pids) - parent_s,
            stand_ins_s={name: tree_cpu_s(pid) for name, pid in stand.service_pids().items()},
            metrics=sum((worker.scrape() for worker in stand.living()), Samples()),
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """One drained lane. All `_cpu_s` are seconds a video."""

    name: str
    videos: int
    counted: int
    upload_s: float
    videos_per_s: float
    worker_cpu_s: float
    parent_cpu_s: float
    children_cpu_s: float
    stages_cpu_s: dict[str, float]
    stand_ins_cpu_s: dict[str, float]
    peak_pss_bytes: int
    peak_processes: int
    kilobytes_read: float
    states: dict[str, int]
    rows: list[Row]


def run_phase(stand: Stand, name: str, clips: Sequence[Path], videos: int, workers: int) -> Phase:
    """Fill the lane with `videos` keys of `clips` in turn, drain it with fresh workers, and count."""
    prefix = f"{name}/"
    cycle = itertools.islice(itertools.cycle(clips), videos)
    start_s = time.monotonic()
    put(stand, ((f"{prefix}{number:04d}.mp4", clip.read_bytes) for number, clip in enumerate(cycle)))
    upload_s = time.monotonic() - start_s
    say(f"{name}: {videos} uploads accepted in {upload_s:.1f} s")
    for _ in range(workers):
        stand.worker()
    edge = max(4, 3 * workers)

    def look() -> Row:
        found = usage(*(worker.pid for worker in stand.living()))
        settled = stand.books.settled(prefix)
        return {"settled": settled, "pss_bytes": found.pss_bytes, "processes": found.processes}

    with Sampler(look, 1.0) as sampler:
        first = _mark_at(stand, prefix, edge)
        last = _mark_at(stand, prefix, videos - edge)
        stand.wait_until_settled(videos, prefix=prefix, timeout_s=300)
    for worker in stand.living():
        worker.terminate()
        worker.wait(60)
    return _phase(name, videos, upload_s, first, last, sampler, stand)


def _mark_at(stand: Stand, prefix: str, count: int) -> Mark:
    settled = stand.wait_until_settled(count, prefix=prefix, timeout_s=600, every_s=0.1)
    if settled < count:
        raise SystemExit(f"only {settled} of {count} videos were decided in time; see {stand.folder}")
    return Mark.now(stand, settled)


def _phase(name: str, videos: int, upload_s: float, first: Mark, last: Mark, sampler: Sampler, stand: Stand) -> Phase:
    counted = last.settled - first.settled
    metrics = last.metrics - first.metrics
    stages = {stage: s / counted for stage, s in metrics.by(STAGE_CPU, "stage").items() if stage != "keyframes"}
    parent_s, children_s = (last.parent_s - first.parent_s) / counted, (last.children_s - first.children_s) / counted
    return Phase(
        name=name,
        videos=videos,
        counted=counted,
        upload_s=upload_s,
        videos_per_s=counted / (last.at_s - first.at_s),
        worker_cpu_s=parent_s + children_s,
        parent_cpu_s=parent_s,
        children_cpu_s=children_s,
        stages_cpu_s=stages,
        stand_ins_cpu_s={key: (s - first.stand_ins_s[key]) / counted for key, s in last.stand_ins_s.items()},
        peak_pss_bytes=round(sampler.most("pss_bytes")),
        peak_processes=round(sampler.most("processes")),
        kilobytes_read=metrics.total("videosieve_bytes_read_total") / counted / 1000,
        states=stand.books.states(),
        rows=sampler.thinned(),
    )


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole benchmark; its result as it is written."""
    weights = models_dir(Settings())
    settings = footage.shipped_policy(weights) | dict(pair.split("=", 1) for pair in options.set)
    clips = footage.long_clips(options.corpus, quick=options.quick)
    policy = policies.load("moderation")
    models = ModelStore(Registry(weights), device="cpu")
    bounds = {}
    for group, paths in clips.items():
        say(f"limits: {group}")
        usual = 0 if options.quick else 2
        bounds[group] = limits.measure(paths, policy, models, rounds=1 if options.quick else 4, usual=usual)
    mixed = [clip for pair in zip(*clips.values(), strict=False) for clip in pair]
    phases = {}
    for name, chosen in (("web", clips["web"]), ("mix", mixed)):
        with Stand(folder / name, settings) as stand:
            phases[name] = run_phase(stand, name, chosen, options.videos, options.workers)
        say(f"{name}: {phases[name].videos_per_s:.2f} videos/s, {phases[name].worker_cpu_s:.3f} CPU s a video")
    return result_of(options.workers, clips, bounds, phases)


def result_of(
    workers: int,
    clips: Mapping[str, Sequence[Path]],
    bounds: Mapping[str, limits.GroupLimits],
    phases: Mapping[str, Phase],
) -> dict[str, Any]:
    """Everything that was measured, as it is written to JSON."""
    return {
        "workers": workers,
        "clips": {group: [f"{path.name} {path.stat().st_size}" for path in paths] for group, paths in clips.items()},
        "limits": {group: asdict(found) for group, found in bounds.items()},
        "phases": {name: asdict(phase) for name, phase in phases.items()},
        "summary": {name: cost_page.summary(phase, bounds) for name, phase in phases.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small clips, few of them")
    parser.add_argument("--corpus", type=Path, help="a folder of NAME_web.mp4 and NAME_phone.mp4")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--videos", type=int, help="a phase  [default: 120]")
    parser.add_argument("--set", action="append", default=[], metavar="VIDEOSIEVE_…=VALUE", help="for the workers")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.videos = options.videos or (24 if options.quick else 120)
    with temporary_folder() as folder:
        result = run(options, folder)
    name = "fleet-cost-quick" if options.quick else "fleet-cost"
    write_json(name, result, options.out)
    cost_page.write(result, options.out / f"{name}.md")
    if not options.quick:
        cost_page.plot(result, options.out / f"{name}.svg")
    say((options.out / f"{name}.md").read_text())


if __name__ == "__main__":
    main()
