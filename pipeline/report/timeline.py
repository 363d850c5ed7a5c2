"""A video's timeline as positions in percent of its length. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.document import Document
from pipeline.report.reading import items, number
from pipeline.report.wording import clock, plural

_MAX_MARKS = 400  # of one kind; closer together they could not be told apart on a screen anyway
_TICKS = 6
_NICE_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)


@dataclass(frozen=True, slots=True)
class Mark:
    """One instant or stretch."""

    left_pct: float
    width_pct: float
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    at_pct: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """`length_s` is the duration, or the last time that is known where it is missing or shorter."""

    length_s: float
    cuts: tuple[Mark, ...]
    motion: tuple[Mark, ...]
    ticks: tuple[Tick, ...]
    summary: str

    def at_pct(self, t_s: float) -> float:
        return _pct(t_s, self.length_s)


def timeline(document: Document, duration_s: float | None, keyframe_times_s: Sequence[float]) -> Timeline:
    """Cuts, stretches with motion and a scale for `document`."""
    cuts_s = [t_s for cut in items(document.get("cuts_s")) if (t_s := number(cut)) is not None]
    motion_s = [stretch for pair in items(document.get("motion_s")) if (stretch := _stretch(pair)) is not None]
    length_s = max([duration_s or 0.0, *keyframe_times_s, *cuts_s, *(end_s for _, end_s in motion_s)])
    parts = [
        f"Timeline of {clock(length_s)}",
        plural(len(cuts_s), "cut"),
        plural(len(motion_s), "stretch with motion", "stretches with motion"),
        plural(len(keyframe_times_s), "keyframe"),
    ]
    return Timeline(
        length_s=length_s,
        cuts=_thinned([Mark(_pct(t_s, length_s), 0.0, f"Cut at {clock(t_s)}") for t_s in cuts_s]),
        motion=_thinned(
            [
                Mark(
                    left_pct=_pct(start_s, length_s),
                    width_pct=round(_pct(end_s, length_s) - _pct(start_s, length_s), 2),
                    title=f"Motion from {clock(start_s)} to {clock(end_s)}",
                )
                for start_s, end_s in motion_s
            ]
        ),
        ticks=_ticks(length_s),
        summary=", ".join(parts),
    )


def _stretch(pair: object) -> tuple[float, float] | None:
    ends = [number(end) for end in items(pair)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] > ends[1]:
        return None
    return ends[0], ends[1]


def _pct(t_s: float, length_s: float) -> float:
    return round(100 * min(1.0, max(0.0, t_s / length_s)), 2) if length_s > 0 else 0.0


def _thinned(marks: list[Mark]) -> tuple[Mark, ...]:
    step = max(1, math.ceil(len(marks) / _MAX_MARKS))
    return tuple(marks[::step])


def _ticks(length_s: float) -> tuple[Tick, ...]:
    step_s = next((step for step in _NICE_STEPS_S if length_s / step <= _TICKS), length_s / _TICKS)
    if length_s <= 0 or step_s <= 0:
        return ()
    times_s = [step_s * i for i in range(int(length_s / step_s) + 1)]
    return tuple(Tick(_pct(t_s, length_s), clock(t_s).removesuffix(".0")) for t_s in times_s)
