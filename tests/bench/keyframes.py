"""Keyframes against detectors that see every frame: cost and quality, in one run.

    python -m tests.bench.keyframes [--corpus DIR] [--quick] [--ours] [--transnet] [--jobs N] [--out DIR]

Without a corpus it generates its own two (see `corpus`). Writes JSON, tables and plots into `docs/benchmarks`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import av
import cv2

from pipeline.media import KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from tests.bench.baselines import Detector, detectors
from tests.bench.corpus import CACHE, FULL, QUICK, SEEDS, generate
from tests.bench.measuring import Effort, Measured, measure_baseline, measure_effort, measure_ours
from tests.bench.plots import plot_budget, plot_cost, write_sheet
from tests.bench.results import OURS, ClipResult, Pool, as_json, clip_table, cost_table, pooled, quality_table
from tests.bench.scoring import read_truth

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
EFFORTS = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Task:
    """One clip and what to measure on it."""

    label: str
    clip: Path
    baselines: bool
    transnet: bool
    efforts: tuple[float, ...]
    reuse: bool = False
    only_kept: bool = False


@cache
def _pool() -> DecoderPool:
    return DecoderPool(1)


@cache
def _warmed_up(clip: Path) -> None:
    """The first use of everything costs more; it is not what a worker pays a video."""
    cv2.setNumThreads(1)
    measure_ours(_pool(), clip, KeyframeSettings())


def run_task(task: Task) -> ClipResult:
    _warmed_up(min(task.clip.parent.glob("*.mp4"), key=lambda clip: clip.stat().st_size))
    with av.open(str(task.clip), "r") as container:
        frames = container.streams.video[0].frames
    measured: dict[str, Measured] = {OURS: measure_ours(_pool(), task.clip, KeyframeSettings())}
    if task.baselines:
        for name, detector in detectors(with_transnet=task.transnet).items():
            if found := _baseline(name, detector, task):
                measured[name] = found
    efforts: list[Effort] = [measure_effort(task.clip, factor) for factor in task.efforts]
    truth, file_bytes = read_truth(task.clip), task.clip.stat().st_size
    return ClipResult(task.label, task.clip.stem, truth, file_bytes, frames, measured, efforts)


def _baseline(name: str, detector: Detector, task: Task) -> Measured | None:
    """A detector's run, kept for `--reuse`: it depends on the clip and the machine, not on our code."""
    kept = CACHE / "baselines" / f"{task.label}-{task.clip.stem}-{task.clip.stat().st_size}-{name}.json"
    if task.reuse and kept.exists():
        found = json.loads(kept.read_text())
        return Measured(**found | {"cuts_s": tuple(found["cuts_s"])})
    if task.only_kept:
        return None
    measured = measure_baseline(detector, task.clip)
    kept.parent.mkdir(parents=True, exist_ok=True)
    facts = {"cpu_s": measured.cpu_s, "wall_s": measured.wall_s, "bytes_read": measured.bytes_read}
    kept.write_text(json.dumps(facts | {"cuts_s": measured.cuts_s}))
    return measured


def _machine() -> dict[str, str]:
    names = ("av", "opencv-python-headless", "numpy", "scenedetect-headless")
    versions = {name: _version(name) for name in names}
    cpu = next((line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), "?")
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "ffmpeg": str(av.ffmpeg_version_info),
        **versions,
    }


def _cpu_lines() -> Iterator[str]:
    try:
        yield from Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _folders(options: argparse.Namespace) -> Mapping[str, Path]:
    if options.corpus:
        return {options.corpus.resolve().name: options.corpus}
    scale, labels = QUICK if options.quick else FULL, tuple(options.set or SEEDS)
    if options.kept:
        return {label: CACHE / scale.name / label for label in labels}
    return generate(scale, labels, options.jobs)


def _report(options: argparse.Namespace, pools: list[Pool], wall_s: float) -> None:
    """The whole run as documents, next to what it was run with."""
    out, name = options.out, options.corpus.resolve().name if options.corpus else "generated"
    out.mkdir(parents=True, exist_ok=True)
    command = "make bench-keyframes" + (" CORPUS=DIR" if options.corpus else "")
    command += ' BENCH_ARGS="--kept"' if options.kept else ' BENCH_ARGS="--reuse"' if options.reuse else ""
    machine = _machine()
    document = {"command": command, "machine": machine, "wall_s": round(wall_s), "pools": as_json(pools)}
    (out / f"keyframes-{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    pages = [
        f"# Keyframes: {name} clips",
        f"`{command}`; {facts}. The run took {wall_s / 60:.0f} minutes with {options.jobs} jobs.",
        "Costs and motion of ours:",
        cost_table(pools),
        "Cuts, each method; “at flashes” and “at exposure” count flashes and changes of exposure taken for a cut:",
        quality_table(pools),
        f"![quality against CPU](budget-{name}.svg)\n![CPU by method](cost-{name}.svg)",
        "Each clip, ours:",
        clip_table(pools),
    ]
    (out / f"keyframes-{name}.md").write_text("\n\n".join(pages) + "\n")
    plot_budget(pools, out / f"budget-{name}.svg")
    plot_cost(pools, out / f"cost-{name}.svg")


def _sheets(pools: list[Pool], folder: Path) -> None:
    for pool in pools:
        (folder / pool.label).mkdir(parents=True, exist_ok=True)
        for clip in pool.clips:
            write_sheet(folder / pool.label / f"{clip.name}.jpg", clip.methods[OURS].images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a folder of NAME.mp4 with truth in NAME.json")
    parser.add_argument("--quick", action="store_true", help="four small clips: whether it all works, not how well")
    parser.add_argument("--set", choices=SEEDS, action="append", help="which generated set; default: both")
    parser.add_argument("--group", help="only clips of this group")
    parser.add_argument("--ours", action="store_true", help="no baselines, no budget curve, nothing written")
    parser.add_argument("--reuse", action="store_true", help="take the baselines from earlier runs where there are any")
    parser.add_argument("--kept", action="store_true", help="only such baselines: tables say on how many clips")
    parser.add_argument("--transnet", action="store_true", help="TransNetV2 too, where it is installed")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=_DOCS)
    options = parser.parse_args()
    start_s = time.monotonic()
    efforts = () if options.ours else EFFORTS
    tasks = [
        Task(label, clip, not options.ours, options.transnet, efforts, options.reuse or options.kept, options.kept)
        for label, folder in _folders(options).items()
        for clip in sorted(folder.glob("*.mp4"))
        if clip.with_suffix(".json").exists() and options.group in {None, read_truth(clip).group}
    ]
    results = []
    with ProcessPoolExecutor(options.jobs) as workers:
        for result in workers.map(run_task, tasks):
            results.append(result.scored())
            print(f"measured {result.label}/{result.name}", file=sys.stderr, flush=True)  # noqa: T201 - progress
    pools = pooled(results)
    print("\n\n".join((clip_table(pools), cost_table(pools), quality_table(pools))))  # noqa: T201 - the output
    _sheets(pools, CACHE / "sheets")
    if not options.ours:
        _report(options, pools, time.monotonic() - start_s)


if __name__ == "__main__":
    main()
