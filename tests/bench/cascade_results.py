"""What a run of the cascade's benchmark adds up to: a table, JSON, a plot. Pure but for the plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.cascade.policy import Policy

REVIEW = "review"


@dataclass(frozen=True, slots=True)
class Run:
    """One way on one clip. `stages` says who answered each question: a stage, or `review`."""

    way: str
    clip: str
    cpu_s: float
    wall_s: float
    machine_nano: int
    review_nano: int
    answers: Mapping[str, str]
    stages: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"cpu_s": round(self.cpu_s, 4), "wall_s": round(self.wall_s, 4)}


@dataclass(frozen=True, slots=True)
class Summary:
    """One way over all clips. Money is for 1,000 videos like these, in whole nano-units.

    `agreed` of `comparable` questions have the reference's answer, where both ways gave one; `alone` were answered
    here and not by the reference, `missed` the other way round.
    """

    way: str
    videos_per_s: float
    cpu_s: float
    machine_nano: int
    review_nano: int
    decided: Mapping[str, float]
    agreed: int
    comparable: int
    alone: int
    missed: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summaries(runs: Sequence[Run], *, reference: str) -> list[Summary]:
    """Each way, in the order of the runs, held to the `reference`."""
    truth = {run.clip: run.answers for run in runs if run.way == reference}
    return [_summary(way, [run for run in runs if run.way == way], truth) for way in dict.fromkeys(r.way for r in runs)]


def _summary(way: str, runs: Sequence[Run], truth: Mapping[str, Mapping[str, str]]) -> Summary:
    pairs = [(answer, truth[run.clip][question]) for run in runs for question, answer in run.answers.items()]
    both = [(answer, true) for answer, true in pairs if REVIEW not in (answer, true)]
    stages = Counter(stage for run in runs for stage in run.stages.values())
    return Summary(
        way=way,
        videos_per_s=len(runs) / sum(run.wall_s for run in runs),
        cpu_s=fmean(run.cpu_s for run in runs),
        machine_nano=sum(run.machine_nano for run in runs) * 1000 // len(runs),
        review_nano=sum(run.review_nano for run in runs) * 1000 // len(runs),
        decided={stage: count / len(pairs) for stage, count in sorted(stages.items())},
        agreed=sum(answer == true for answer, true in both),
        comparable=len(both),
        alone=sum(answer != REVIEW == true for answer, true in pairs),
        missed=sum(true != REVIEW == answer for answer, true in pairs),
    )


def as_table(
    found: Sequence[Summary], policy: Policy, *, videos: int, facts: Mapping[str, str], baselines: tuple[str, str]
) -> str:
    """A page of Markdown: a row for each way, ratios of processor time to both baselines of the same run."""
    currency = policy.commercial.currency
    of = {summary.way: summary for summary in found}
    stages = list(dict.fromkeys(stage for summary in found for stage in summary.decided if stage != REVIEW))
    columns = [
        "way", "videos/s", "CPU s a video", *(f"times cheaper than {name}" for name in baselines),
        f"machine {currency} / 1,000", f"with people {currency} / 1,000",
        *(f"decided by {stage}" for stage in stages), "left to people", "agrees with 1 fps", "answered alone / missed",
    ]  # fmt: skip
    lines = [
        f"# The cascade: policy {policy.name}, {videos} videos",
        "",
        "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items()),
        "",
        "| " + " | ".join(columns) + " |",
        "|" + " --- |" * len(columns),
    ]
    for one in found:
        cells = [
            one.way,
            f"{one.videos_per_s:.2f}",
            f"{one.cpu_s:.3f}",
            *(f"{of[name].cpu_s / one.cpu_s:.2f}" for name in baselines),
            f"{one.machine_nano / 1e9:.5f}",
            f"{(one.machine_nano + one.review_nano) / 1e9:.2f}",
            *(f"{one.decided.get(stage, 0):.0%}" for stage in stages),
            f"{one.decided.get(REVIEW, 0):.0%}",
            f"{one.agreed} of {one.comparable}",
            f"{one.alone} / {one.missed}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(found: Sequence[Summary], path: Path) -> None:
    """Processor time a video, and who decided what share."""
    from tests.bench.plots import pyplot, save

    plots = pyplot()
    figure, (left, right) = plots.subplots(1, 2, figsize=(10, 3.2))
    names = [one.way for one in found]
    left.barh(names, [one.cpu_s for one in found])
    left.set(xlabel="CPU s a video", xscale="log")
    below = [0.0] * len(found)
    for stage in dict.fromkeys(stage for one in found for stage in [*one.decided]):
        shares = [one.decided.get(stage, 0.0) for one in found]
        right.barh(names, shares, left=below, label=stage, color="0.8" if stage == REVIEW else None)
        below = [bottom + share for bottom, share in zip(below, shares, strict=True)]
    right.set(xlabel="share of questions decided by", yticks=[])
    right.legend(fontsize=7)
    for axes in (left, right):
        axes.invert_yaxis()
    save(figure, path)
