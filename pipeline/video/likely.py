"""Where sizes make a cut or a transition likely: a ranking of places to look at. Pure.

An encoder answers a new scene or a blend with larger samples, and pays for them afterwards where it holds its bit rate;
keys of two scenes differ in size. No single one of these signs tells much. Logistic regressions weigh them: for samples
that begin a scene, and for samples within a gradual change, which each style of encoding codes in a way of its own.
`tests.bench.fit_likely` fits them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.video.index import SampleIndex
from pipeline.video.likely_weights import GRADUAL, GRADUAL_HEVC, GRADUAL_WEB, HARD

_SMALLEST_BYTES = 200.0
_AFTER_KEY = 5  # samples that the key makes small
_HALVES = (7, 11, 16, 22)
_NEAR, _FAR = 9, 30
_HINGE, _CAP = 0.3, 3.0
_SMOOTH = 9
_FEWEST = 60
_PIECE, _PIECE_MARGIN = 18_000, 100
_KEY_RATIO = 2.0
_HARD_APART_S, _GRADUAL_APART_S = 0.1, 0.6
_HARD_LIKELY, _GRADUAL_LIKELY = 0.2, 0.12
_HARD_PER_MINUTE, _GRADUAL_PER_MINUTE = 14, 13
_SURE, _BESIDE_S, _BLEND_S = 0.7, 0.4, 0.3
_HARD_FIRST, _SURE_BLEND = 0.6, 0.95
_BLENDS_APART_S, _BLEND_LIKELY, _BLENDS_PER_MINUTE = 1.0, 0.15, 24

Columns = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """A sample at which sizes suggest that a scene begins, or one is blended into the next; `likelihood` in 0..1.

    `blend`: where it looks like a beginning, how likely something is blended beside it.
    """

    sample: int
    t_s: float
    likelihood: float
    is_gradual: bool
    blend: float = 0.0


def suspicious_places(index: SampleIndex, t_s: NDArray[np.float64]) -> tuple[Place, ...]:
    """The likeliest places, in the order in which they are worth a look; not what a likely cut does to sizes beside it.

    None where the stream is too short to tell, or its keys are no larger than other samples: intra refresh has none.
    """
    order = np.argsort(t_s, kind="stable")
    is_key = index.is_key[order]
    sizes = index.size_bytes[order]
    if len(order) < _FEWEST or is_key.sum() < 3 or np.median(sizes[is_key]) < _KEY_RATIO * np.median(sizes[~is_key]):
        return ()
    levels = np.log(sizes + _SMALLEST_BYTES)
    hard, gradual = _likelihoods(sizes, is_key, HARD, GRADUAL)
    hard[levels < _around(np.where(is_key, -np.inf, levels), 1).max(axis=1)] = 0.0
    gradual = np.convolve(gradual, np.full(_SMOOTH, 1 / _SMOOTH), "same")
    for column in (hard, gradual):
        column[is_key | ~index.is_readable[order]] = 0.0
    minutes = max(index.duration_s, 20.0) / 60
    cuts = _peaks(order, t_s[order], hard, _HARD_APART_S, _HARD_LIKELY, round(_HARD_PER_MINUTE * minutes))
    blends = _peaks(order, t_s[order], gradual, _GRADUAL_APART_S, _GRADUAL_LIKELY, round(_GRADUAL_PER_MINUTE * minutes))
    beside = [gradual[slice(*np.searchsorted(t_s[order], (at_s - _BLEND_S, at_s + _BLEND_S)))] for _, at_s, _ in cuts]
    places = [Place(*cut, is_gradual=False, blend=float(near.max())) for cut, near in zip(cuts, beside, strict=True)]
    sure_s = np.array(sorted(place.t_s for place in places if place.likelihood > _SURE) or [-np.inf])
    for sample, at_s, likelihood in blends:
        if np.abs(sure_s - at_s).min() > _BESIDE_S:
            places.append(Place(sample, at_s, likelihood, is_gradual=True))
    return tuple(sorted(places, key=_order))


def _order(place: Place) -> float:
    """Hard ones first, and last the blends that are certain enough unseen."""
    is_sure = place.is_gradual and place.likelihood > _SURE_BLEND
    return place.is_gradual * _HARD_FIRST - place.likelihood + 2 * is_sure


def blends(index: SampleIndex, t_s: NDArray[np.float64]) -> tuple[Place, ...]:
    """The likely dissolves and fades of a stream of long GOPs, in order of time."""
    order = np.argsort(t_s, kind="stable")
    if len(order) < _FEWEST:
        return ()
    is_key = index.is_key[order]
    weights = GRADUAL_HEVC if index.facts.codec == "hevc" else GRADUAL_WEB
    (likelihood,) = _likelihoods(index.size_bytes[order], is_key, weights)
    likelihood[is_key] = 0.0
    likelihood = np.convolve(likelihood, np.full(_SMOOTH, 1 / _SMOOTH), "same")
    likelihood[~index.is_readable[order]] = 0.0
    count = round(_BLENDS_PER_MINUTE * max(index.duration_s, 20.0) / 60)
    found = _peaks(order, t_s[order], likelihood, _BLENDS_APART_S, _BLEND_LIKELY, count)
    return tuple(Place(*place, is_gradual=True) for place in sorted(found, key=lambda place: place[1]))


def _peaks(
    order: NDArray[np.int64],
    t_s: NDArray[np.float64],
    likelihood: NDArray[np.float64],
    apart_s: float,
    least: float,
    count: int,
) -> list[tuple[int, float, float]]:
    """Sample, time and likelihood of up to `count` peaks above `least`, each `apart_s` from any higher one."""
    above = np.flatnonzero(likelihood > least)
    is_free, found = np.ones(len(t_s), bool), list[tuple[int, float, float]]()
    for best in above[np.argsort(-likelihood[above], kind="stable")].tolist():
        if is_free[best] and len(found) < count:
            found.append((int(order[best]), float(t_s[best]), float(likelihood[best])))
            is_free[slice(*np.searchsorted(t_s, (t_s[best] - apart_s, t_s[best] + apart_s)))] = False
    return found


def _likelihoods(
    size_bytes: NDArray[np.int64], is_key: NDArray[np.bool_], *tables: tuple[float, ...]
) -> list[NDArray[np.float64]]:
    """By each table of weights, every sample's likelihood; piece by piece, as two hours of signs take 200 MB."""
    count = len(size_bytes)
    found = [np.zeros(count) for _ in tables]
    for start in range(0, count, _PIECE):
        first, end = max(0, start - _PIECE_MARGIN), min(count, start + _PIECE)
        inside = slice(first, min(count, end + _PIECE_MARGIN))
        if not is_key[inside].any():
            continue  # nothing to measure keys by
        _, columns = signs(size_bytes[inside], is_key[inside])
        for likelihood, weights in zip(found, tables, strict=True):
            likelihood[start:end] = _logistic(columns[start - first : end - first], weights)
    return found


def _logistic(columns: Columns, weights: tuple[float, ...]) -> NDArray[np.float64]:
    """The probability of each row; shorter weights are of the first columns, the plain signs."""
    score = columns[:, : len(weights) - 1] @ np.array(weights[1:]) + weights[0]
    return np.asarray(1 / (1 + np.exp(-np.clip(score, -30, 30))), np.float64)


def signs(size_bytes: NDArray[np.int64], is_key: NDArray[np.bool_]) -> tuple[NDArray[np.float64], Columns]:
    """Logarithms of the sizes, and a row of signs for each sample, shape (n, signs)."""
    count = len(size_bytes)
    levels = np.log(size_bytes + _SMALLEST_BYTES)
    keys = np.flatnonzero(is_key)
    number = np.arange(count)
    gop = np.clip(np.searchsorted(keys, number, side="right") - 1, 0, None)
    since_key = number - keys[gop]
    usual = (since_key >= _AFTER_KEY) & ~is_key
    smooth = np.interp(number, number[usual], levels[usual]) if usual.any() else levels
    plain = levels if is_key.all() else np.interp(number, number[~is_key], levels[~is_key])
    found: list[NDArray[np.float64]] = []
    mean = _Means(smooth)
    for half in _HALVES:
        inside, low, high = mean(-half + 2, half - 2), mean(-half - _NEAR, -half - 1), mean(half + 1, half + _NEAR)
        far_low, far_high = mean(-half - _FAR, -half - 1), mean(half + 1, half + _FAR)
        rises = inside - low, inside - high
        found += [np.minimum(*rises), np.maximum(*rises), inside - np.maximum(far_low, far_high)]
        found += [inside - np.minimum(far_low, far_high), np.abs(far_high - far_low)]
    core = mean(-4, 4)
    found += [_around(smooth, 4).max(axis=1) - core, core - _around(plain, 4).min(axis=1)]
    found += [_spread(smooth, 4), _spread(smooth, 15), core - float(np.median(smooth))]
    beside = _Means(plain)
    low, high = beside(-8, -1), beside(1, 8)
    found += [
        levels - low,
        levels - high,
        np.abs(high - low),
        levels - np.minimum(low, high),
        levels - np.maximum(low, high),
    ]
    found += [np.minimum(since_key, 8) / 8]
    found += _key_jumps(
        levels[keys], np.searchsorted(keys, number - 2, side="right") - 1, np.searchsorted(keys, number + 2)
    )
    columns = np.clip(np.stack(found, axis=1), -_CAP, _CAP)
    return levels, np.concatenate([columns, np.maximum(columns - _HINGE, 0), np.minimum(columns + _HINGE, 0)], axis=1)


def _key_jumps(
    levels: NDArray[np.float64], before: NDArray[np.int64], after: NDArray[np.int64]
) -> list[NDArray[np.float64]]:
    """How the sizes of the keys around each sample differ."""
    last = len(levels) - 1
    one, two = np.clip(before, 0, last), np.clip(before - 1, 0, last)
    next_one, next_two = np.clip(after, 0, last), np.clip(after + 1, 0, last)
    across = np.abs(levels[next_one] - levels[one])
    wider = np.abs(levels[next_one] + levels[next_two] - levels[one] - levels[two]) / 2
    return [across, wider, np.abs(levels[one] - levels[two]), np.abs(levels[next_two] - levels[next_one])]


class _Means:
    """Means over [i + low, i + high] around every i, the ends repeated."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._count = len(values)
        self._sums = np.concatenate([[0.0], np.cumsum(values)])

    def __call__(self, low: int, high: int) -> NDArray[np.float64]:
        number = np.arange(self._count)
        first = np.clip(number + low, 0, self._count - 1)
        end = np.clip(number + high, 0, self._count - 1) + 1
        return np.asarray((self._sums[end] - self._sums[first]) / (end - first), np.float64)


def _spread(values: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    mean, square = _Means(values)(-half, half), _Means(values**2)(-half, half)
    return np.asarray(np.sqrt(np.maximum(square - mean**2, 0)), np.float64)


def _around(values: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    """The 2 * half + 1 values around each, the ends repeated, shape (n, 2 * half + 1)."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(values, half, mode="edge"), 2 * half + 1)
