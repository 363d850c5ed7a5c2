"""Results of one run, pooled by set and group, as JSON and as Markdown tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from tests.bench.measuring import Effort, Measured
from tests.bench.scoring import Misses, Score, Truth, ratio, score
from tests.bench.steps import STEPS, Pooled, Profile, pooled_profiles

OURS = "videosieve"
REFERENCE = "ContentDetector"
_QUALITY = (
    "set|group|method|clips|CPU s (median)|of clips in this run"
    "|F1|precision|recall|hard|dissolves|fades|at flash|at exposure"
)
_COST = (
    "set|group|clips|CPU ms (median)|wall ms|times cheaper than ContentDetector (median)|on clips"
    "|bytes %|MB|ranges (most)|frames %|onsets|false onsets a clip"
)
_CLIP = (
    "set|clip|CPU ms|ratio|bytes %|MB|ranges|frames|cuts|false cuts (s)|missed|onsets|false onsets (s)|missed onsets"
)


@dataclass(frozen=True, slots=True)
class ClipResult:
    """Everything measured on one clip: `methods` by name, ours among them, and ours at other budgets."""

    label: str
    name: str
    truth: Truth
    file_bytes: int
    frames: int
    methods: Mapping[str, Measured]
    efforts: Sequence[Effort] = ()
    profile: Profile | None = None
    scores: dict[str, tuple[Score, Misses]] = field(default_factory=dict)

    def scored(self) -> ClipResult:
        for name, measured in self.methods.items():
            self.scores[name] = score(self.truth, measured.cuts_s, measured.onsets_s)
        return self

    def cpu_ratio(self) -> float | None:
        """How many times the reference's processor time is ours; None where it was not measured in this run."""
        reference = self.methods.get(REFERENCE)
        return reference.cpu_s / self.methods[OURS].cpu_s if reference and reference.is_same_run else None


@dataclass(frozen=True, slots=True)
class Pool:
    """The clips of one group in one set."""

    label: str
    group: str
    clips: tuple[ClipResult, ...]

    def of(self, method: str) -> list[ClipResult]:
        """The clips that a method was run on."""
        return [clip for clip in self.clips if method in clip.methods]

    def score(self, method: str) -> Score:
        return sum((clip.scores[method][0] for clip in self.of(method)), Score())

    def timed(self, method: str) -> list[ClipResult]:
        """The clips on which a method was measured in this run."""
        return [clip for clip in self.of(method) if clip.methods[method].is_same_run]

    def cpu_s(self, method: str) -> float:
        """The median a clip: of this run, if it was measured in it."""
        return median(clip.methods[method].cpu_s for clip in self.timed(method) or self.of(method))

    def profile(self) -> Pooled | None:
        found = [clip.profile for clip in self.clips if clip.profile is not None]
        return pooled_profiles(found) if found else None

    def cpu_ratio(self) -> float | None:
        ratios = [found for clip in self.clips if (found := clip.cpu_ratio()) is not None]
        return median(ratios) if ratios else None

    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for clip in self.clips for method in clip.methods))


def pooled(clips: Iterable[ClipResult]) -> list[Pool]:
    by_place: dict[tuple[str, str], list[ClipResult]] = {}
    for clip in clips:
        by_place.setdefault((clip.label, clip.truth.group), []).append(clip)
    return [Pool(label, group, tuple(members)) for (label, group), members in by_place.items()]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown: the first row is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def quality_table(pools: Sequence[Pool]) -> str:
    rows = [_QUALITY.split("|")]
    for pool in pools:
        for method in pool.methods():
            found = pool.score(method)
            rows.append(
                [
                    pool.label,
                    pool.group,
                    method,
                    str(len(pool.of(method))),
                    f"{pool.cpu_s(method):.3f}",
                    str(len(pool.timed(method)) or "earlier run"),
                    *(f"{value:.3f}" for value in (found.f1, found.precision, found.recall)),
                    _of(found.hard, found.hard_of),
                    _of(found.dissolves, found.dissolves_of),
                    _of(found.fades, found.fades_of),
                    _of(found.at_flashes, found.flashes_of),
                    _of(found.at_exposures, found.exposures_of),
                ]
            )
    return table(rows)


def _of(part: int, whole: int) -> str:
    return f"{part}/{whole}" if whole else "–"


def cost_table(pools: Sequence[Pool]) -> str:
    rows = [_COST.split("|")]
    for pool in pools:
        ours = [(clip, clip.methods[OURS]) for clip in pool.clips]
        found, cpu_ratio = pool.score(OURS), pool.cpu_ratio()
        rows.append(
            [
                pool.label,
                pool.group,
                str(len(ours)),
                f"{1000 * pool.cpu_s(OURS):.0f}",
                f"{1000 * median(run.wall_s for _, run in ours):.0f}",
                f"{cpu_ratio:.0f}" if cpu_ratio else "–",
                str(len(pool.timed(REFERENCE))),
                f"{100 * median(run.bytes_read / clip.file_bytes for clip, run in ours):.1f}",
                f"{median(run.bytes_read for _, run in ours) / 1e6:.2f}",
                str(max(run.ranges for _, run in ours)),
                f"{100 * median(run.frames_decoded / clip.frames for clip, run in ours):.1f}",
                _of(found.onsets, found.onsets_of),
                f"{ratio(found.false_onsets, found.motion_clips):.2f}" if found.motion_clips else "–",
            ]
        )
    return table(rows)


def clip_table(pools: Sequence[Pool]) -> str:
    rows = [_CLIP.split("|")]
    for pool in pools:
        for clip in pool.clips:
            run, (found, misses) = clip.methods[OURS], clip.scores[OURS]
            cpu_ratio = clip.cpu_ratio()
            rows.append(
                [
                    pool.label,
                    clip.name,
                    f"{1000 * run.cpu_s:.0f}",
                    f"{cpu_ratio:.0f}" if cpu_ratio else "–",
                    f"{100 * run.bytes_read / clip.file_bytes:.1f}",
                    f"{run.bytes_read / 1e6:.2f}",
                    str(run.ranges),
                    str(run.frames_decoded),
                    _of(found.cuts, found.cuts_of),
                    ", ".join(map(str, misses.false_cuts_s)),
                    ", ".join(misses.missed),
                    _of(found.onsets, found.onsets_of),
                    ", ".join(map(str, misses.false_onsets_s)),
                    ", ".join(misses.missed_onsets),
                ]
            )
    return table(rows)


def profile_table(pools: Sequence[Pool]) -> str:
    """Median milliseconds by step: what decoding costs is bytes times the decoder's speed."""
    rows = [["set", "group", "clips", *(f"{step} ms" for step in STEPS), "MB decoded", "ms/MB", "frames", "images"]]
    for pool in pools:
        if found := pool.profile():
            steps = [f"{found.steps_ms[step]:.1f}" for step in STEPS]
            counts = [
                f"{found.decoded_mb:.2f}",
                f"{found.decode_ms_a_mb:.0f}",
                f"{found.frames:g}",
                f"{found.images:g}",
            ]
            rows.append([pool.label, pool.group, str(found.clips), *steps, *counts])
    return table(rows)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Ours at one multiple of the budget: mean CPU seconds a clip, F1 of cuts, recall of onsets."""

    factor: float
    cpu_s: float
    f1: float
    onset_recall: float


def curve(pool: Pool) -> list[CurvePoint]:
    points = []
    measured = [clip for clip in pool.clips if clip.efforts]
    for position, effort in enumerate(measured[0].efforts if measured else ()):
        runs = [(clip, clip.efforts[position]) for clip in measured]
        total = sum((score(clip.truth, run.cuts_s, run.onsets_s)[0] for clip, run in runs), Score())
        cpu_s = sum(run.cpu_s for _, run in runs) / len(runs)
        points.append(CurvePoint(effort.factor, cpu_s, total.f1, ratio(total.onsets, total.onsets_of)))
    return points


def as_json(pools: Sequence[Pool]) -> list[dict[str, Any]]:
    return [
        {
            "set": pool.label,
            "group": pool.group,
            "cpu_ratio_to_content_detector_median": pool.cpu_ratio(),
            "methods": {name: _method_json(pool, name) for name in pool.methods()},
            "budget_curve": [
                {"factor": p.factor, "cpu_s": p.cpu_s, "f1": p.f1, "onset_recall": p.onset_recall} for p in curve(pool)
            ],
            "profile": asdict(found) if (found := pool.profile()) else None,
            "clips": [_clip_json(clip) for clip in pool.clips],
        }
        for pool in pools
    ]


def _method_json(pool: Pool, name: str) -> dict[str, Any]:
    found = pool.score(name)
    counts = {part: getattr(found, part) for part in Score.__dataclass_fields__}
    quality = {"f1": found.f1, "precision": found.precision, "recall": found.recall}
    return {"cpu_s_median": pool.cpu_s(name), **quality, **counts}


def _clip_json(clip: ClipResult) -> dict[str, Any]:
    return {
        "name": clip.name,
        "file_bytes": clip.file_bytes,
        "frames": clip.frames,
        "methods": {
            name: {
                "cpu_s": round(run.cpu_s, 4),
                "wall_s": round(run.wall_s, 4),
                "same_run": run.is_same_run,
                "bytes_read": run.bytes_read,
                "ranges": run.ranges,
                "frames_decoded": run.frames_decoded,
                "cuts_s": [round(cut, 3) for cut in run.cuts_s],
                "onsets_s": None if run.onsets_s is None else [round(at, 3) for at in run.onsets_s],
            }
            for name, run in clip.methods.items()
        },
    }
