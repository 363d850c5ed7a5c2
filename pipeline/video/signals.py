"""What the sizes of the samples say, before any decoding: where cuts may be and where something moves. Pure.

An encoder spends bytes where the picture changes. So a sample much larger than those before it may be a cut,
a key off the regular beat was put there by the encoder's own scene detection, and a lasting rise of the sizes of
non-key samples is motion.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.video.glance import GLANCED_CODECS
from pipeline.video.index import SampleIndex
from pipeline.video.likely import Place, blends, suspicious_places

_BEFORE = 12
_BEFORE_PERCENTILE = 85
_ACTIVITY_STEP_S = 0.1
_ACTIVITY_WINDOW_S = 0.5
_DROPPED_LARGEST = 2
_CALM_QUANTILE = 0.35
_ANCHOR_GAP_S = 0.45
_REGULAR_SHARE = 0.4
_REGULAR_TIMES = 3
_DEFAULT_KEY_INTERVAL = 250  # of x264 and x265
_BUMP_SURROUNDINGS_S = 2.5
_BUMP_EDGE = 0.4
_BUMP_MIN_S, _BUMP_MAX_S = 0.3, 2.6
LONG_GOP_S = 2.1
"""GOPs up to this long are dense enough to see motion by comparing neighbouring keys."""


@dataclass(frozen=True, slots=True)
class Bump:
    """A passing rise of activity in [start_s, end_s), `rise` in logarithms: how dissolves and fades are coded."""

    start_s: float
    end_s: float
    rise: float


def _middle_s(bump: Bump) -> float:
    return (bump.start_s + bump.end_s) / 2


@dataclass(frozen=True, slots=True)
class Signals:
    """Per-sample facts derived from an index of n samples.

    `t_s` float64 (n,) seconds from the first displayed frame; `keys` int64; `anchors` int64: the readable, shown keys
    worth decoding, thinned to one in 0.45 s and the irregular ones; `is_irregular` bool (n,): keys off the beat;
    `size_ratio` float64 (n,): a sample's size over the 85th percentile of the 12 non-key samples before it;
    `key_share` float64 (n,): its size over the median key's; `is_reference` bool (n,): samples that decoding can
    step on, by their display order; `activity` float64 (m,): the logarithm of the local mean size of non-key
    samples, every 0.1 s; `bumps`: its passing rises; `gop_s`: the usual distance of anchors;
    `places`: where sizes make cuts likely, for short GOPs whose samples say something alone; `blends`: where they make
    gradual changes likely, for long GOPs.
    """

    index: SampleIndex
    t_s: NDArray[np.float64]
    keys: NDArray[np.int64]
    anchors: NDArray[np.int64]
    is_irregular: NDArray[np.bool_]
    size_ratio: NDArray[np.float64]
    key_share: NDArray[np.float64]
    is_reference: NDArray[np.bool_]
    activity: NDArray[np.float64]
    calm: NDArray[np.float64]
    bumps: tuple[Bump, ...]
    gop_s: float
    places: tuple[Place, ...]
    blends: tuple[Place, ...]

    @property
    def can_patch(self) -> bool:
        """Whether decoding past missing references keeps the old picture; HEVC's reference sets turn it grey."""
        return self.index.facts.codec != "hevc"

    @property
    def can_glance(self) -> bool:
        """Whether samples say something without the pictures they predict from."""
        return self.index.facts.codec in GLANCED_CODECS

    @property
    def has_short_gops(self) -> bool:
        return self.gop_s <= LONG_GOP_S

    def activity_at(self, start_s: float, end_s: float) -> NDArray[np.float64]:
        """The activity within [start_s, end_s); may be empty."""
        return self.activity[round(start_s / _ACTIVITY_STEP_S) : round(end_s / _ACTIVITY_STEP_S)]

    def calm_at(self, start_s: float, end_s: float) -> NDArray[np.float64]:
        """What `calm` is within [start_s, end_s); may be empty."""
        return self.calm[round(start_s / _ACTIVITY_STEP_S) : round(end_s / _ACTIVITY_STEP_S)]

    def bumps_between(self, start_s: float, end_s: float, min_rise: float) -> list[Bump]:
        """The bumps of at least `min_rise` whose middle lies in [start_s, end_s)."""
        first, last = (bisect.bisect_left(self.bumps, at_s, key=_middle_s) for at_s in (start_s, end_s))
        return [bump for bump in self.bumps[first:last] if bump.rise >= min_rise]

    def blends_between(self, start_s: float, end_s: float) -> tuple[Place, ...]:
        """The likely gradual changes in [start_s, end_s)."""
        first, last = (bisect.bisect_left(self.blends, at_s, key=lambda place: place.t_s) for at_s in (start_s, end_s))
        return self.blends[first:last]

    def next_key(self, sample: int) -> int:
        """The first key after `sample`, or the number of samples."""
        at = int(np.searchsorted(self.keys, sample, side="right"))
        return int(self.keys[at]) if at < len(self.keys) else len(self.index)


def signals(index: SampleIndex) -> Signals:
    """The signals of a checked index."""
    t_s = index.t_s
    keys = np.flatnonzero(index.is_key)
    is_irregular = _irregular(index, keys)
    anchors = _anchors(index, t_s, is_irregular)
    gaps_s = np.diff(t_s[anchors])
    median_key = float(np.median(index.size_bytes[keys])) if len(keys) else 1.0
    activity, calm = _activity(index, t_s)
    is_reference = np.concatenate([[True], index.pts[1:] > np.maximum.accumulate(index.pts)[:-1]])
    gop_s = float(np.median(gaps_s)) if len(gaps_s) else index.duration_s
    is_short = gop_s <= LONG_GOP_S
    return Signals(
        index=index,
        t_s=t_s,
        keys=keys,
        anchors=anchors,
        is_irregular=is_irregular,
        size_ratio=_size_ratio(index),
        key_share=index.size_bytes / max(1.0, median_key),
        is_reference=is_reference,
        activity=activity,
        calm=calm,
        bumps=_bumps(activity),
        gop_s=gop_s,
        places=suspicious_places(index, t_s) if is_short and index.facts.codec in GLANCED_CODECS else (),
        blends=() if is_short else blends(index, t_s),
    )


def _anchors(index: SampleIndex, t_s: NDArray[np.float64], is_irregular: NDArray[np.bool_]) -> NDArray[np.int64]:
    first_shown = int(index.is_shown.argmax())
    hidden = np.flatnonzero((index.is_key & index.is_readable)[: first_shown + 1])
    kept = [int(sample) for sample in hidden[-1:]]  # an edit list may hide the key of what it shows first
    for sample in np.flatnonzero(index.is_key & index.is_readable):
        is_apart = not kept or t_s[sample] - t_s[kept[-1]] >= _ANCHOR_GAP_S
        if index.is_shown[sample] and (is_apart or is_irregular[sample]):
            kept.append(int(sample))
    if not kept:
        kept = [int(sample) for sample in np.flatnonzero(index.is_key & index.is_readable)[:1]]
    return np.array(kept, np.int64)


def _irregular(index: SampleIndex, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Keys that end a GOP of neither the usual, nor the often reached greatest, nor the default length."""
    irregular = np.zeros(len(index), bool)
    lengths = np.diff(keys)
    if len(lengths):
        values, counts = np.unique(lengths, return_counts=True)
        is_beat = (counts >= _REGULAR_SHARE * len(lengths)) & (counts >= _REGULAR_TIMES)
        is_beat[-1] |= counts[-1] >= _REGULAR_TIMES
        beats = np.append(values[is_beat], _DEFAULT_KEY_INTERVAL)
        is_regular = (np.abs(lengths[:, None] - beats) <= 1).any(axis=1)
        irregular[keys[1:][~is_regular]] = True
    return irregular


def _size_ratio(index: SampleIndex) -> NDArray[np.float64]:
    """Computed over the non-key samples in decoding order; the first few compare with those that follow."""
    inter = np.flatnonzero(~index.is_key)
    ratio = np.ones(len(index))
    if len(inter) < _BEFORE + 1:
        return ratio
    sizes = index.size_bytes[inter].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(sizes, _BEFORE)
    usual = np.percentile(windows, _BEFORE_PERCENTILE, axis=1)
    position = np.searchsorted(inter, np.arange(len(index)))  # how many non-key samples stand before each
    before = np.clip(position - _BEFORE, 0, len(usual) - 1)
    return index.size_bytes / np.maximum(1.0, usual[before])


def _activity(index: SampleIndex, t_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithms of sizes in a 0.5 s window: the mean without its two largest samples (refresh pulses), and the 35th
    percentile. The latter is a B-picture's wherever there are some: it costs nothing before a camera that stands
    still, however noisy its sensor, as the noise is coded in what it lies between."""
    inter = np.flatnonzero(~index.is_key & index.is_shown)
    inter = inter[np.argsort(t_s[inter], kind="stable")]
    steps = max(1, int(index.duration_s / _ACTIVITY_STEP_S) + 1)
    if len(inter) < 2 * _DROPPED_LARGEST + 2:
        return np.zeros(steps), np.zeros(steps)
    rate = len(inter) / max(index.duration_s, 0.1)
    width = int(np.clip(round(rate * _ACTIVITY_WINDOW_S), _DROPPED_LARGEST + 2, len(inter)))
    sizes = index.size_bytes[inter].astype(np.float64)
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(sizes, width), axis=1)
    centres = t_s[inter][width // 2 : width // 2 + len(windows)]
    grid = np.arange(steps) * _ACTIVITY_STEP_S
    levels = windows[:, : width - _DROPPED_LARGEST].mean(axis=1), windows[:, int(_CALM_QUANTILE * width)]
    activity, calm = (np.asarray(np.log(np.interp(grid, centres, level) + 1.0), np.float64) for level in levels)
    return activity, calm


def _bumps(activity: NDArray[np.float64]) -> tuple[Bump, ...]:
    """Stretches above the usual activity of the seconds before and after them, whichever is the greater."""
    around = round(_BUMP_SURROUNDINGS_S / _ACTIVITY_STEP_S)
    if len(activity) < 2 * around:
        return ()
    padded = np.pad(activity, around, mode="edge")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * around + 1), axis=1)
    raised = np.concatenate([[False], activity > usual + _BUMP_EDGE, [False]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(raised))
    found = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        length_s = (end - begin) * _ACTIVITY_STEP_S
        if not _BUMP_MIN_S <= length_s <= _BUMP_MAX_S:
            continue
        before, after = activity[max(0, begin - around) : begin], activity[end : end + around]
        beside = max((float(np.median(side)) for side in (before, after) if len(side) > 3), default=0.0)
        rise = float(activity[begin:end].max()) - beside
        found.append(Bump(begin * _ACTIVITY_STEP_S, end * _ACTIVITY_STEP_S, rise))
    return tuple(found)


def smoothed(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """A running median of odd `width`, the ends repeated."""
    if len(values) < 3 or width < 3:
        return values
    padded = np.pad(values, width // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))
