"""Truth files, and how found cuts and motion compare with them. Pure but for reading the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

CUT_TOLERANCE_S = 0.5
MOTION_TOLERANCE_S = 1.0
GRADUAL_SLACK_S = 0.05
"""A gradual change counts as found inside its range; this much is for the frame's own length."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What happens in one clip; `group` is its style of encoding. Times in seconds from the first frame."""

    group: str
    duration_s: float
    cuts_s: tuple[float, ...]
    gradual: tuple[tuple[str, float, float], ...]
    motion: tuple[tuple[float, float, str], ...]
    motion_scored: tuple[tuple[float, float], ...]
    flashes: tuple[tuple[float, float], ...] = ()
    exposures: tuple[tuple[float, float], ...] = ()


def read_truth(clip: Path) -> Truth:
    """The truth file beside a clip. Without a `group` the name tells: phone, hevc, else web."""
    found = json.loads(clip.with_suffix(".json").read_text())
    by_name = next((group for group in ("phone", "hevc") if group in clip.stem), "web")
    return Truth(
        group=found.get("group", by_name),
        duration_s=float(found["duration"]),
        cuts_s=tuple(found["cuts"]),
        gradual=tuple((kind, start_s, end_s) for kind, start_s, end_s in found["gradual"]),
        motion=tuple((start_s, end_s, kind) for start_s, end_s, kind in found["motion"]),
        motion_scored=tuple((start_s, end_s) for start_s, end_s in found["motion_scored"]),
        flashes=tuple((start_s, start_s + length_s) for start_s, length_s in found.get("flashes", ())),
        exposures=tuple((start_s, end_s) for start_s, end_s in found.get("exposure", ())),
    )


@dataclass(frozen=True, slots=True)
class Score:
    """Counts that add up over clips. `of` are how many there are, the rest how many were found or wrong."""

    hard: int = 0
    hard_of: int = 0
    dissolves: int = 0
    dissolves_of: int = 0
    fades: int = 0
    fades_of: int = 0
    false_cuts: int = 0
    at_flashes: int = 0
    flashes_of: int = 0
    at_exposures: int = 0
    exposures_of: int = 0
    onsets: int = 0
    onsets_of: int = 0
    false_onsets: int = 0
    motion_clips: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(**{part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(self)})

    @property
    def cuts(self) -> int:
        return self.hard + self.dissolves + self.fades

    @property
    def cuts_of(self) -> int:
        return self.hard_of + self.dissolves_of + self.fades_of

    @property
    def precision(self) -> float:
        return ratio(self.cuts, self.cuts + self.false_cuts)

    @property
    def recall(self) -> float:
        return ratio(self.cuts, self.cuts_of)

    @property
    def f1(self) -> float:
        return ratio(2 * self.cuts, self.cuts + self.false_cuts + self.cuts_of)


def ratio(part: float, whole: float) -> float:
    """`part / whole`; 1 where there is nothing to be found."""
    return part / whole if whole else 1.0


@dataclass(slots=True)
class Misses:
    """What went wrong, for people to look at."""

    missed: list[str] = field(default_factory=list)
    false_cuts_s: list[float] = field(default_factory=list)
    missed_onsets: list[str] = field(default_factory=list)
    false_onsets_s: list[float] = field(default_factory=list)


def score(truth: Truth, cuts_s: Sequence[float], onsets_s: Sequence[float] | None) -> tuple[Score, Misses]:
    """Each truth takes the nearest cut that is left; what nobody takes is false. No onsets: motion is not scored."""
    misses = Misses()
    left = sorted(cuts_s)
    spans = [("hard", cut - CUT_TOLERANCE_S, cut + CUT_TOLERANCE_S) for cut in truth.cuts_s]
    spans += [(_kind(k), start_s - GRADUAL_SLACK_S, end_s + GRADUAL_SLACK_S) for k, start_s, end_s in truth.gradual]
    counts = dict.fromkeys(("hard", "hard_of", "dissolves", "dissolves_of", "fades", "fades_of"), 0)
    for kind, start_s, end_s in sorted(spans, key=lambda span: span[1]):
        counts[f"{kind}_of"] += 1
        if _taken(left, start_s, end_s):
            counts[kind] += 1
        else:
            misses.missed.append(f"{kind} {(start_s + end_s) / 2:.2f}")
    misses.false_cuts_s = [round(cut, 2) for cut in left]
    motion = _motion(truth, onsets_s, misses) if onsets_s is not None else {}
    found = Score(
        **counts,
        false_cuts=len(left),
        at_flashes=_near(left, truth.flashes),
        flashes_of=len(truth.flashes),
        at_exposures=_near(left, truth.exposures),
        exposures_of=len(truth.exposures),
        **motion,
    )
    return found, misses


def _kind(kind: str) -> str:
    return "fades" if kind.startswith("fade") else "dissolves"


def _taken(left: list[float], start_s: float, end_s: float) -> bool:
    """Takes the candidate nearest to the middle of a span away, if there is one."""
    inside = [at_s for at_s in left if start_s <= at_s <= end_s]
    if inside:
        left.remove(min(inside, key=lambda at_s: abs(at_s - (start_s + end_s) / 2)))
    return bool(inside)


def _near(cuts_s: Iterable[float], spans: Sequence[tuple[float, float]]) -> int:
    """How many spans have a cut within half a second."""
    cuts = list(cuts_s)
    return sum(any(a - CUT_TOLERANCE_S <= cut <= b + CUT_TOLERANCE_S for cut in cuts) for a, b in spans)


def _motion(truth: Truth, onsets_s: Sequence[float], misses: Misses) -> dict[str, int]:
    left = sorted(at for at in onsets_s if any(a - 0.01 <= at <= b + 0.01 for a, b in truth.motion_scored))
    found = 0
    for start_s, _, kind in truth.motion:
        if _taken(left, start_s - MOTION_TOLERANCE_S, start_s + MOTION_TOLERANCE_S):
            found += 1
        else:
            misses.missed_onsets.append(f"{kind} {start_s:.2f}")
    misses.false_onsets_s = [round(at, 2) for at in left]
    clips = int(bool(truth.motion_scored))
    return {
        "onsets": found,
        "onsets_of": len(truth.motion),
        "false_onsets": len(left),
        "motion_clips": clips,
    }
