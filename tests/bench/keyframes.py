"""Keyframes against detectors that see every frame: cost and quality.

    python -m tests.bench.keyframes [--corpus DIR [--all]] [--quick] [--ours] [--complete] [--out DIR]

Without a corpus it generates its own (see `corpus`). Writes JSON, tables, plots and contact sheets into
`docs/benchmarks`. Costs: ours on every clip; ContentDetector on every clip of a corpus and of the 1080p pair, on one
edit and one static clip of each generated set and group, between runs of ours on the same file. Quality: every detector
on every clip; what a detector finds in the same bytes is kept from earlier runs (`kept`), as it is the same every time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import av
import cv2

from pipeline.media import KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from tests.bench.baselines import TRANSNET, detectors
from tests.bench.corpus import CACHE, FULL, QUICK, SEEDS, SETS, folder_of, generate
from tests.bench.kept import keep, kept, kept_or_found
from tests.bench.measuring import Measured, measure_baseline, measure_effort, measure_ours, median_run, once
from tests.bench.plots import plot_budget, plot_cost, write_sheet
from tests.bench.results import (
    OURS,
    REFERENCE,
    ClipResult,
    Pool,
    as_json,
    clip_table,
    cost_table,
    pooled,
    profile_table,
    quality_table,
)
from tests.bench.scoring import read_truth
from tests.bench.steps import profile
from tests.bench.targets import targets_table

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
EFFORTS = (0.25, 0.5, 1.0, 2.0)
_FIRST_SCRIPTS = ("edit0_", "static0_")


@dataclass(frozen=True, slots=True)
class Task:
    """One clip and what to measure on it: `costed` are detectors to be timed in this run, beside ours."""

    label: str
    clip: Path
    costed: tuple[str, ...]
    efforts: tuple[float, ...]
    baselines: str = "all"
    """"all": those that were not kept are run; "kept": only kept ones; "none"."""


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
    measured = _costs(task)
    if task.baselines != "none":
        measured |= _qualities(task, measured)
    return ClipResult(
        label=task.label,
        name=task.clip.stem,
        truth=read_truth(task.clip),
        file_bytes=task.clip.stat().st_size,
        frames=frames,
        methods={name: measured[name] for name in (OURS, *detectors(), TRANSNET) if name in measured},
        efforts=[measure_effort(task.clip, factor) for factor in task.efforts],
        profile=profile(task.clip) if task.costed else None,
    )


def _costs(task: Task) -> dict[str, Measured]:
    """Ours, and between its runs the detectors that are timed in this run: all on the same file."""
    settings = KeyframeSettings()
    runs = [once(_pool(), task.clip, settings) for _ in range(2)]
    measured = {}
    for name in task.costed:
        measured[name] = measure_baseline(detectors()[name], task.clip)
        keep(name, task.clip, measured[name])
        runs += [once(_pool(), task.clip, settings) for _ in range(2)]
    runs += [once(_pool(), task.clip, settings)]
    return measured | {OURS: median_run(runs)}


def _qualities(task: Task, measured: dict[str, Measured]) -> dict[str, Measured]:
    found = {}
    for name, detector in detectors().items():
        if name not in measured and task.baselines == "all":
            found[name] = kept_or_found(name, detector, task.clip)
        elif name not in measured and (known := kept(name, task.clip)):
            found[name] = known
    if known := kept(TRANSNET, task.clip):
        found[TRANSNET] = known
    return found


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


def _folders(options: argparse.Namespace) -> dict[str, Path]:
    """The clips to measure, by the name of their set."""
    folders = {options.corpus.resolve().name: options.corpus} if options.corpus else {}
    if options.corpus and not (options.all or options.set):
        return folders
    scale = QUICK if options.quick else FULL
    labels = options.set or (tuple(SEEDS) if options.quick else SETS)
    if options.baselines == "kept":
        return folders | {label: folder_of(scale, label) for label in labels}
    return folders | generate(scale, labels, options.jobs)


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    for label, folder in _folders(options).items():
        for clip in sorted(folder.glob("*.mp4")):
            if not clip.with_suffix(".json").exists() or options.group not in {None, read_truth(clip).group}:
                continue
            costed: tuple[str, ...] = ()
            if options.complete:
                costed = tuple(detectors())
            elif options.baselines == "all" and (label not in SEEDS or clip.name.startswith(_FIRST_SCRIPTS)):
                costed = (REFERENCE,)
            yield Task(label, clip, costed, () if options.ours else EFFORTS, options.baselines)


def _fill(options: argparse.Namespace) -> None:
    """Only what detectors find, for later runs."""
    with ProcessPoolExecutor(options.jobs) as workers:
        for task in _tasks(options):
            for name, detector in detectors().items():
                workers.submit(kept_or_found, name, detector, task.clip)


def _report(options: argparse.Namespace, name: str, pools: list[Pool], wall_s: float) -> None:
    """A run's clips of one making as documents, next to what they were measured with."""
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    command = "make bench-keyframes" + (" CORPUS=DIR" if options.corpus else "")
    command += ' BENCH_ARGS="--all"' if options.corpus and options.all else ""
    machine = _machine()
    document = {"command": command, "machine": machine, "wall_s": round(wall_s), "pools": as_json(pools)}
    (out / f"keyframes-{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    pages = [
        f"# Keyframes: {name} clips",
        f"`{command}`; {facts}. The run took {wall_s / 60:.0f} minutes; the load average was {os.getloadavg()[2]:.1f}.",
        "What was promised:",
        targets_table(pools),
        "Costs and motion of ours:",
        cost_table(pools),
        "Where ours spends its time (medians of the clips that ContentDetector was timed on):",
        profile_table(pools),
        "Cuts, each method; “at flashes” and “at exposure” count flashes and changes of exposure taken for a cut:",
        quality_table(pools),
        f"![quality against CPU](budget-{name}.svg)\n![CPU by method](cost-{name}.svg)",
        "Each clip, ours:",
        clip_table(pools),
    ]
    (out / f"keyframes-{name}.md").write_text("\n\n".join(pages) + "\n")
    plot_budget(pools, out / f"budget-{name}.svg")
    plot_cost(pools, out / f"cost-{name}.svg")
    (out / "sheets").mkdir(exist_ok=True)
    for clip in (clip for pool in pools for clip in pool.clips):
        if clip.label not in SETS or clip.name.startswith(_FIRST_SCRIPTS):
            _sheet(clip, out / "sheets" / f"{clip.label}-{clip.name}.jpg")


def _sheet(clip: ClipResult, path: Path) -> None:
    ours = clip.methods[OURS]
    write_sheet(path, ours.images, ours.keyframes)


def _sheets(pools: list[Pool], folder: Path) -> None:
    for pool in pools:
        (folder / pool.label).mkdir(parents=True, exist_ok=True)
        for clip in pool.clips:
            _sheet(clip, folder / pool.label / f"{clip.name}.jpg")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a folder of NAME.mp4 with truth in NAME.json")
    parser.add_argument("--all", action="store_true", help="the generated sets too, beside --corpus")
    parser.add_argument("--quick", action="store_true", help="a few small clips: whether it all works, not how well")
    parser.add_argument("--set", choices=SETS, action="append", help="which generated sets; default: all")
    parser.add_argument("--group", help="only clips of this group")
    parser.add_argument("--ours", action="store_true", help="no baselines, no budget curve, nothing written")
    parser.add_argument("--complete", action="store_true", help="time every detector on every clip: about an hour")
    parser.add_argument("--kept", action="store_true", help="only baselines of earlier runs, no ratios")
    parser.add_argument("--fill", action="store_true", help="only run detectors whose findings were not kept yet")
    parser.add_argument("--jobs", type=int, default=1, help="processes; more than one disturbs times")
    parser.add_argument("--out", type=Path, default=_DOCS)
    options = parser.parse_args()
    options.baselines = "none" if options.ours else "kept" if options.kept else "all"
    return options


def main() -> None:
    options = _arguments()
    if options.fill:
        _fill(options)
        return
    start_s = time.monotonic()
    results = []
    with ProcessPoolExecutor(options.jobs) as workers:
        for result in workers.map(run_task, _tasks(options)):
            results.append(result.scored())
            print(f"measured {result.label}/{result.name}", file=sys.stderr, flush=True)  # noqa: T201 - progress
    pools, wall_s = pooled(results), time.monotonic() - start_s
    tables = (clip_table(pools), cost_table(pools), quality_table(pools), targets_table(pools))
    print("\n\n".join(tables))  # noqa: T201 - the output
    _sheets(pools, CACHE / "sheets")
    if options.ours:
        return
    for name, part in (
        ("corpus", [pool for pool in pools if pool.label not in SETS]),
        ("generated", [pool for pool in pools if pool.label in SETS]),
    ):
        if part:
            _report(options, name, part, wall_s)


if __name__ == "__main__":
    main()
