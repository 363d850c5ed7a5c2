"""When something moves before a camera that stands still. Pure.

Two witnesses: the sizes of non-key samples, where a still scene codes to almost nothing; and, where noise keeps
them large, the changed area between neighbouring keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.video.cuts import Cut
from pipeline.video.evidence import Evidence, Run
from pipeline.video.signals import Signals, smoothed

_QUIET_SHARE = 0.05
_QUIET_PERCENTILE = 20
_RISE = float(np.log(1.35))
_RISE_IN_MADS = 4.0
_SHOT_MARGIN_S = 0.4
_SETTLING_S = 0.3
_RISE_WHILE_SETTLING = 1.0  # encoders refine a still scene in its first second
_MIN_LENGTH_S = 0.35
_JOIN_GAP_S = 1.0
_MIN_SHOT_S = 1.5
_STEP_S = 0.1
_ONSET_S = 0.2
_MIN_AREA, _MAX_AREA = 0.0012, 0.4
_STILL_LEVELS = 3.0
_QUIET_PAIRS = 0.2


@dataclass(frozen=True, slots=True)
class Motion:
    """Something moves in [start_s, end_s); `score` in 0..1."""

    start_s: float
    end_s: float
    score: float


@dataclass(frozen=True, slots=True)
class MotionFindings:
    motion: tuple[Motion, ...]
    wishes: tuple[Run, ...]


def find_motion(signals: Signals, evidence: Evidence, cuts: Sequence[Cut]) -> MotionFindings:
    """Motion within each shot, and the keys that would show more of it."""
    found: list[Motion] = []
    wishes: list[tuple[float, Run]] = []
    duration_s = signals.index.duration_s
    bounds = [0.0, *(cut.t_s for cut in cuts), duration_s]
    for start_s, end_s in itertools.pairwise(bounds):
        if end_s - start_s < _MIN_SHOT_S:
            continue
        if is_quiet_coded(signals, start_s, end_s):
            by_sizes = _by_sizes(signals, start_s, end_s)
            if signals.has_short_gops:
                checks = [_seen(signals, evidence, moving) for moving in by_sizes]
                wishes += [(0.0, run) for check in checks for run in check.wishes]
                by_sizes = [moving for moving, check in zip(by_sizes, checks, strict=True) if check.is_moving]
            found += by_sizes
        elif signals.has_short_gops:
            pairs = _pairs(signals, evidence, start_s, end_s)
            found += _by_pixels(signals, evidence, pairs)
            wishes += _gaps(signals, evidence, pairs)
    ordered = tuple(run for _, run in sorted(wishes, key=lambda wish: wish[0]))
    return MotionFindings(tuple(found), ordered)


@dataclass(frozen=True, slots=True)
class _Check:
    is_moving: bool
    wishes: tuple[Run, ...] = ()


def _seen(signals: Signals, evidence: Evidence, moving: Motion) -> _Check:
    """Whether the keys around a motion differ too, where keys are dense: an encoder's whims change sizes as well.

    Compares the last key before the motion with the first within it; in doubt it is believed.
    """
    t_s = signals.t_s[signals.anchors]
    before = signals.anchors[t_s <= moving.start_s]
    within = signals.anchors[(t_s > moving.start_s + _ONSET_S) & (t_s <= moving.end_s)]
    pair = [int(sample) for sample in (*before[-1:], *within[:1])]
    missing = [sample for sample in pair if sample not in evidence.exact]
    if len(pair) < 2 or any(sample in evidence.failed for sample in missing):
        return _Check(is_moving=True)
    if missing:
        return _Check(is_moving=True, wishes=tuple(Run((sample,)) for sample in missing))
    return _Check(is_moving=evidence.change(*pair).area >= _MIN_AREA)


def is_quiet_coded(signals: Signals, start_s: float, end_s: float) -> bool:
    """Whether still pictures cost next to nothing here, so that sizes show motion."""
    activity = signals.activity_at(start_s + _SHOT_MARGIN_S, end_s - _SHOT_MARGIN_S)
    if not len(activity):
        return False
    keys = signals.index.size_bytes[signals.anchors]
    usual_key = float(np.median(keys)) if len(keys) else 1.0
    return bool(np.exp(np.percentile(activity, _QUIET_PERCENTILE)) < _QUIET_SHARE * usual_key)


def _by_sizes(signals: Signals, start_s: float, end_s: float) -> list[Motion]:
    first_s = start_s + _SHOT_MARGIN_S
    activity = smoothed(signals.activity_at(first_s, end_s - _SHOT_MARGIN_S), 3)
    base = float(np.percentile(activity, _QUIET_PERCENTILE))
    below = activity[activity <= np.median(activity)]
    spread = float(np.median(np.abs(below - np.median(below))))
    active = activity > base + max(_RISE, _RISE_IN_MADS * spread)
    found = []
    for begin, end in _stretches(active):
        rise = float(activity[begin:end].max()) - base
        if begin * _STEP_S < _SETTLING_S and rise < _RISE_WHILE_SETTLING:
            continue
        found.append(Motion(first_s + begin * _STEP_S, first_s + end * _STEP_S, float(np.clip(rise / 2, 0.05, 1.0))))
    return found


def _stretches(active: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open stretches of True, joined over short gaps, the short ones dropped."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], active, [False]]).astype(np.int8)))
    joined: list[tuple[int, int]] = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if joined and (begin - joined[-1][1]) * _STEP_S < _JOIN_GAP_S:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return [(begin, end) for begin, end in joined if (end - begin) * _STEP_S >= _MIN_LENGTH_S]


def _pairs(signals: Signals, evidence: Evidence, start_s: float, end_s: float) -> list[tuple[int, int]]:
    inside = [
        sample
        for sample in signals.anchors.tolist()
        if sample in evidence.exact and start_s - 1e-3 <= signals.t_s[sample] < end_s - 1e-3
    ]
    return list(itertools.pairwise(inside))


def _by_pixels(signals: Signals, evidence: Evidence, pairs: list[tuple[int, int]]) -> list[Motion]:
    """Runs of neighbouring keys between which a part of the picture changed, in shots that are mostly still."""
    areas = np.array([evidence.change(*pair).area for pair in pairs])
    typical = np.array([evidence.change(*pair).typical for pair in pairs])
    if len(pairs) < 3:
        return []
    base = float(np.quantile(areas, _QUIET_PAIRS))
    if base > _MIN_AREA:
        return []
    moving = (areas > max(_MIN_AREA, 3 * base)) & (areas < _MAX_AREA) & (typical <= _STILL_LEVELS)
    found: list[Motion] = []
    for (before, after), moves, area in zip(pairs, moving, areas, strict=True):
        if not moves:
            continue
        start_s, end_s = float(signals.t_s[before]), float(signals.t_s[after])
        score = float(np.clip(area / 0.05, 0.05, 1.0))
        if found and start_s - found[-1].end_s < _JOIN_GAP_S / 2:
            found[-1] = Motion(found[-1].start_s, end_s, max(score, found[-1].score))
        else:
            found.append(Motion(start_s + 0.4 * min(1.0, end_s - start_s), end_s, score))
    return found


def _gaps(signals: Signals, evidence: Evidence, pairs: list[tuple[int, int]]) -> list[tuple[float, Run]]:
    """The middle keys of pairs with undecoded keys between them; the least changed pairs first."""
    wishes = []
    for before, after in pairs:
        first, last = (int(np.searchsorted(signals.anchors, sample)) for sample in (before, after))
        between = [int(a) for a in signals.anchors[first + 1 : last] if int(a) not in evidence.failed]
        change = evidence.change(before, after)
        if between and change.typical <= _STILL_LEVELS and change.area < _MAX_AREA:
            wishes.append((change.area, Run((between[len(between) // 2],))))
    return wishes
