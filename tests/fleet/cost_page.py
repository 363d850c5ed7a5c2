"""The cost benchmark's summary, table and plot. Pure but for writing them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fleet.limits import GroupLimits
from tests.fleet.reports import plots, save, table

if TYPE_CHECKING:
    from tests.fleet.bench import Phase

GOALS = {"web": 0.40, "mix": 0.57}
"""CPU seconds a video; the mix is 3.5 videos a second on two cores."""
DAY_S = 86_400


def summary(phase: Phase, bounds: Mapping[str, GroupLimits]) -> dict[str, Any]:
    """The figures that the fleet is judged by. Limits of the mix are the mean of its groups'."""
    groups = [bounds["web"]] if phase.name == "web" else list(bounds.values())

    def mean(*values: float) -> float:
        return sum(values) / len(values)

    decode_s, models_s = mean(*(g.decode.wall_s for g in groups)), mean(*(g.models.wall_s for g in groups))
    needed_cpu_s = mean(*(g.decode.cpu_s + g.models.cpu_s for g in groups))
    usual = [g.usual_cpu_s for g in groups if g.usual_cpu_s is not None]
    stand_ins_s = sum(phase.stand_ins_cpu_s.values())
    together = 1 / (decode_s + models_s)
    return {
        "cpu_s": phase.worker_cpu_s,
        "goal_cpu_s": GOALS[phase.name],
        "videos_per_s": phase.videos_per_s,
        "videos_per_day": round(phase.videos_per_s * DAY_S),
        "stand_ins_cpu_s": stand_ins_s,
        "videos_per_s_without_stand_ins": phase.videos_per_s * (1 + stand_ins_s / phase.worker_cpu_s),
        "limit_decode_per_s": 1 / decode_s,
        "limit_models_per_s": 1 / models_s,
        "limit_together_per_s": together,
        "efficiency_wall": phase.videos_per_s / together,
        "efficiency_wall_without_stand_ins": phase.videos_per_s * (1 + stand_ins_s / phase.worker_cpu_s) / together,
        "efficiency_cpu": needed_cpu_s / phase.worker_cpu_s,
        "usual_cpu_s": mean(*usual) if usual else None,
        "usual_ratio": mean(*usual) / phase.worker_cpu_s if usual else None,
        "peak_pss_mb": phase.peak_pss_bytes / 1e6,
        "keyframes": mean(*(g.keyframes for g in groups)),
        "cpu_s_if_a_fifth_reached_the_mid_tier": phase.worker_cpu_s
        + mean(*(0.2 * g.keyframes * g.mid_image_cpu_s for g in groups)),
        "mid_share": mean(*(g.mid_share for g in groups)),
    }


def stages(phase: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, float]:
    """CPU seconds a video by stage; they add up to what the worker's process tree used."""
    groups = [limits["web"]] if phase["name"] == "web" else list(limits.values())
    weights = [group["decode"]["cpu_s"] for group in groups]
    found = {
        f"decoder: {part}": phase["children_cpu_s"]
        * sum(group["child"][part] * weight for group, weight in zip(groups, weights, strict=True))
        / sum(weights)
        for part in groups[0]["child"]
    }
    found |= phase["stages_cpu_s"]
    return found | {"rest of the parent": phase["parent_cpu_s"] - sum(phase["stages_cpu_s"].values())}


def write(result: Mapping[str, Any], path: Path) -> None:
    phases, limits = result["phases"], result["limits"]
    by_phase = {name: stages(phase, limits) for name, phase in phases.items()}
    names = list(dict.fromkeys(name for found in by_phase.values() for name in found))
    rows: list[list[object]] = [[name, *(found.get(name) for found in by_phase.values())] for name in names]
    rows += [
        ["**the worker, all of it**", *(phase["worker_cpu_s"] for phase in phases.values())],
        ["goal", *(GOALS[name] for name in phases)],
    ]
    rows += [
        [f"stand-in: {name}", *(phase["stand_ins_cpu_s"][name] for phase in phases.values())]
        for name in ("ministack", "postgres")
    ]
    facts = list(next(iter(result["summary"].values())))
    path.write_text(
        "# What a video costs\n\nWritten by `make bench-fleet`; what it means stands in [fleet](fleet.md).\n\n"
        "CPU seconds a video, by stage:\n\n"
        + table(["stage", *phases], rows)
        + "\nFigures:\n\n"
        + table(["figure", *phases], [[fact, *(s[fact] for s in result["summary"].values())] for fact in facts])
        + "\nLimits on all cores, alone, seconds a video:\n\n"
        + table(
            [
                "group",
                "decode wall",
                "decode CPU",
                "models wall",
                "models CPU",
                "JPEG CPU",
                "keyframes",
                "mid share",
                "mid CPU a keyframe",
            ],
            [
                [
                    name,
                    *(found[part][kind] for part in ("decode", "models") for kind in ("wall_s", "cpu_s")),
                    *(found[key] for key in ("jpeg_cpu_s", "keyframes", "mid_share", "mid_image_cpu_s")),
                ]
                for name, found in limits.items()
            ],
        )
        + f"\n{result['workers']} worker process(es), {phases['web']['videos']} videos a phase.\n"
    )


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Stacked stages beside the goals, and the rates beside their limits."""
    pyplot = plots()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    phases = result["phases"]
    bottoms = dict.fromkeys(phases, 0.0)
    by_phase = {name: stages(phase, result["limits"]) for name, phase in phases.items()}
    for stage in dict.fromkeys(stage for found in by_phase.values() for stage in found):
        heights = [found.get(stage, 0.0) for found in by_phase.values()]
        left.bar(list(phases), heights, bottom=list(bottoms.values()), label=stage, width=0.5)
        bottoms = {name: bottoms[name] + height for name, height in zip(phases, heights, strict=True)}
    for number, name in enumerate(phases):
        left.hlines(GOALS[name], number - 0.35, number + 0.35, color="black", linestyle="--")
    left.set(ylabel="CPU s a video (dashed: goal)", xlim=(-0.5, 3.2))
    left.legend(fontsize=6, loc="upper right")
    kinds = ("limit_decode_per_s", "limit_models_per_s", "limit_together_per_s", "videos_per_s")
    for number, kind in enumerate(kinds):
        places = [place + (number - 1.5) * 0.2 for place in range(len(phases))]
        right.bar(places, [found[kind] for found in result["summary"].values()], 0.2, label=kind.replace("_", " "))
    right.axhline(3.5, color="black", linestyle="--", lw=0.8)
    right.set_xticks(range(len(phases)), list(phases))
    right.set(ylabel="videos a second (dashed: 3.5)")
    right.legend(fontsize=7)
    save(figure, path)
