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

from pipeline.video.evidence import Evidence, Look, Run, Wish
from pipeline.video.findings import Cut
from pipeline.video.glance import Glance
from pipeline.video.signals import Signals, smoothed

_QUIET_SHARE = 0.05
_QUIET_PERCENTILE = 20
_RISE = float(np.log(1.35))
_RISE_IN_MADS = 4.0
_SHOT_MARGIN_S, _BLEND_S = 0.4, 0.7
_SETTLING_S = 0.3
_RISE_WHILE_SETTLING = 1.0  # encoders refine a still scene in its first second
_MIN_LENGTH_S = 0.35
_JOIN_GAP_S = 1.4
_MIN_SHOT_S = 1.5
_STEP_S = 0.1
_ONSET_S = 0.2
_MIN_AREA, _MAX_AREA = 0.0012, 0.4
_STILL_LEVELS = 3.0
_BASE_HALF_S = 6.0
_MIN_LOOKS, _GROUND_KEYS = 3, 5
_BLACK_LEVEL, _USUAL_LIGHT = 16.0, 90.0
_CHANGED_LEVELS, _NOISE_FACTOR = 9.0, 4.0
_CLOSE_ENOUGH_S = 2.1
_GLANCES_AT_S = (0.3, 1.1, 1.9, 3.0)
_MIN_MOVING, _LIT = 0.0014, 0.1


@dataclass(frozen=True, slots=True)
class Motion:
    """Something moves in [start_s, end_s); `score` in 0..1."""

    start_s: float
    end_s: float
    score: float


@dataclass(frozen=True, slots=True)
class MotionFindings:
    motion: tuple[Motion, ...]
    wishes: tuple[Wish, ...]


def find_motion(signals: Signals, evidence: Evidence, cuts: Sequence[Cut]) -> MotionFindings:
    """Motion within each shot, and the keys that would show more of it."""
    found: list[Motion] = []
    wishes: list[tuple[float, Wish]] = []
    duration_s = signals.index.duration_s
    starts_s = [0.0, *(cut.t_s + _BLEND_S * cut.is_gradual for cut in cuts)]
    ends_s = [*(cut.t_s - _BLEND_S * cut.is_gradual for cut in cuts), duration_s]
    for start_s, end_s in zip(starts_s, ends_s, strict=True):
        if end_s - start_s < _MIN_SHOT_S:
            continue
        if is_quiet_coded(signals, start_s, end_s):
            by_sizes = _by_sizes(signals, start_s, end_s)
            checks = [_checked(signals, evidence, moving) for moving in by_sizes]
            wishes += [(0.0, run) for check in checks for run in check.wishes]
            told = [check.motion for check in checks if check.motion is not None]
            found += told
            if signals.has_short_gops:  # keys are at hand, and may show what sizes do not
                shown = _by_looks(signals, _looks(signals, evidence, start_s, end_s))
                found += [moving for moving in shown if not any(_overlap(moving, other) for other in told)]
        elif signals.has_short_gops:
            looks = _looks(signals, evidence, start_s, end_s)
            found += _by_looks(signals, looks)
            wishes += _unseen(signals, evidence, looks)
    ordered = tuple(run for _, run in sorted(wishes, key=lambda wish: wish[0]))
    return MotionFindings(tuple(found), ordered)


def _overlap(one: Motion, other: Motion) -> bool:
    return one.start_s < other.end_s and other.start_s < one.end_s


@dataclass(frozen=True, slots=True)
class _Check:
    """A motion as far as it is believed, and what would tell more."""

    motion: Motion | None
    wishes: tuple[Wish, ...] = ()


def _checked(signals: Signals, evidence: Evidence, moving: Motion) -> _Check:
    if signals.can_glance:
        return _glanced(signals, evidence, moving)
    return _seen(signals, evidence, moving) if signals.has_short_gops else _Check(moving)


def _glanced(signals: Signals, evidence: Evidence, moving: Motion) -> _Check:
    """Looks at what moves in the motion's samples: light and an encoder's whims change sizes, but move nothing.

    Where the first sample looked at shows a still picture, the motion may begin later: up to three are tried.
    """
    start_s = moving.start_s
    for wait_s in _GLANCES_AT_S:
        at_s = moving.start_s + wait_s
        sample = glanceable(signals, at_s, moving.end_s)
        if sample is None:
            break
        if sample not in evidence.glances:
            return _Check(Motion(start_s, moving.end_s, moving.score), (Look(sample),))
        seen = evidence.glances[sample]
        if seen is None or is_moving(seen):
            return _Check(Motion(start_s, moving.end_s, moving.score))
        start_s = at_s
    return _Check(None)


def is_moving(seen: Glance) -> bool:
    """Whether something moves before a camera that does not, rather than light that changes: that moves nothing, though
    blocks that cannot be predicted find something alike elsewhere."""
    return seen.moving > _MIN_MOVING and seen.intra < max(_LIT, seen.moving)


def glanceable(signals: Signals, at_s: float, end_s: float) -> int | None:
    """The first sample from `at_s` on that predicts from the past only, as seen from its time and size."""
    inside = (signals.t_s >= at_s) & (signals.t_s < end_s) & signals.is_reference
    samples = np.flatnonzero(inside & ~signals.index.is_key & signals.index.is_readable)
    return int(samples[0]) if len(samples) else None


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
        return _Check(moving)
    if missing:
        return _Check(moving, tuple(Run((sample,)) for sample in missing))
    return _Check(moving if evidence.change(*pair).area >= _MIN_AREA else None)


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
    activity = smoothed(signals.calm_at(first_s, end_s - _SHOT_MARGIN_S), 3)
    base = _rolling_base(activity)
    below = activity[activity <= np.median(activity)]
    spread = float(np.median(np.abs(below - np.median(below))))
    active = activity > base + max(_RISE, _RISE_IN_MADS * spread)
    found = []
    for begin, end in _stretches(active):
        rise = float((activity - base)[begin:end].max())
        if begin * _STEP_S < _SETTLING_S and rise < _RISE_WHILE_SETTLING:
            continue
        found.append(Motion(first_s + begin * _STEP_S, first_s + end * _STEP_S, float(np.clip(rise / 2, 0.05, 1.0))))
    return found


def _rolling_base(activity: NDArray[np.float64]) -> NDArray[np.float64]:
    """The activity of stillness at each instant: a low percentile of the surrounding 12 s, as exposure and an encoder's
    refinement shift it slowly; never below the shot's own."""
    half = round(_BASE_HALF_S / _STEP_S)
    if len(activity) <= 2 * half:
        return np.full(len(activity), float(np.percentile(activity, _QUIET_PERCENTILE)))
    padded = np.pad(activity, half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    return np.asarray(np.percentile(windows, _QUIET_PERCENTILE, axis=1), np.float64)


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


@dataclass(frozen=True, slots=True)
class _Look:
    """One decoded key of a shot against the shot's background: the share of the picture that differs."""

    sample: int
    area: float


def _looks(signals: Signals, evidence: Evidence, start_s: float, end_s: float) -> list[_Look]:
    """The decoded keys of a shot before a camera that stands still; empty where it moves or too little was seen.

    The background is the median of the keys around each; the smaller difference counts.
    """
    samples = [
        sample
        for sample in signals.anchors.tolist()
        if sample in evidence.exact and start_s - 1e-3 <= signals.t_s[sample] < end_s - 1e-3
    ]
    if len(samples) < _MIN_LOOKS:
        return []
    exposed = np.stack([_exposed(evidence.exact[sample].blurred) for sample in samples])
    grounds = [_grounds(exposed, position) for position in range(len(samples))]
    found, typical = [], []
    for sample, picture, around in zip(samples, exposed, grounds, strict=True):
        levels = [np.abs(picture - ground) for ground in around]
        usual = [_typical(level) for level in levels]
        areas = [
            float((level > max(_CHANGED_LEVELS, _NOISE_FACTOR * base)).mean())
            for level, base in zip(levels, usual, strict=True)
        ]
        found.append(_Look(sample, min(areas)))
        typical.append(min(usual))
    return found if float(np.median(typical)) <= _STILL_LEVELS else []


def _exposed(luma: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Brought to a median brightness of its own, so that a change of exposure is none of the picture."""
    light = luma.astype(np.float32) - _BLACK_LEVEL
    return np.asarray(light * (_USUAL_LIGHT / max(8.0, _typical(light))), np.float32)


def _typical(picture: NDArray[np.float32]) -> float:
    """The median of every fourth pixel: as good as that of all, for a quarter of the time."""
    return float(np.median(picture[::2, ::2]))


def _grounds(exposed: NDArray[np.float32], position: int) -> list[NDArray[np.float32]]:
    """The background before and after one of a shot's pictures: things that are put down or taken away change it."""
    before = exposed[max(0, position - _GROUND_KEYS) : position]
    after = exposed[position + 1 : position + 1 + _GROUND_KEYS]
    return [_median(side) for side in (before, after) if len(side)]


def _median(pictures: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pixel by pixel; of the usual five by comparisons, five times as fast as sorting (the median of three is left when
    the least and the greatest of two pairs each are put aside)."""
    if len(pictures) != _GROUND_KEYS:
        return np.asarray(np.median(pictures, axis=0), np.float32)
    a, b, c, d, e = pictures
    low = np.maximum(np.minimum(a, b), np.minimum(c, d))
    high = np.minimum(np.maximum(a, b), np.maximum(c, d))
    return np.asarray(np.maximum(np.minimum(low, high), np.minimum(e, np.maximum(low, high))), np.float32)


def _by_looks(signals: Signals, looks: Sequence[_Look]) -> list[Motion]:
    """Stretches of keys that show something else than the background; it came halfway since the key before."""
    found: list[Motion] = []
    t_s = signals.t_s
    was_moving = False
    for position, look in enumerate(looks):
        moves = _MIN_AREA < look.area < _MAX_AREA
        now_s = float(t_s[look.sample])
        next_s = float(t_s[looks[position + 1].sample]) if position + 1 < len(looks) else now_s + signals.gop_s
        score = float(np.clip(look.area / 0.05, 0.05, 1.0))
        if moves and was_moving:
            found[-1] = Motion(found[-1].start_s, (now_s + next_s) / 2, max(score, found[-1].score))
        elif moves and position:
            before_s = float(t_s[looks[position - 1].sample])
            found.append(Motion((before_s + now_s) / 2, (now_s + next_s) / 2, score))
        was_moving = moves and position > 0
    return found


def _unseen(signals: Signals, evidence: Evidence, looks: Sequence[_Look]) -> list[tuple[float, Run]]:
    """The middle keys between decoded ones: first where something came, then in the longest gaps."""
    wishes = []
    for one, other in itertools.pairwise(looks):
        first, last = (int(np.searchsorted(signals.anchors, look.sample)) for look in (one, other))
        between = [int(a) for a in signals.anchors[first + 1 : last] if int(a) not in evidence.failed]
        if not between:
            continue
        gap_s = float(signals.t_s[other.sample] - signals.t_s[one.sample])
        comes = one.area <= _MIN_AREA < other.area and gap_s > _CLOSE_ENOUGH_S
        wishes.append((-gap_s - (100.0 if comes else 0.0), Run((between[len(between) // 2],))))
    return wishes
