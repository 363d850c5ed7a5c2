"""Samples that stand out by size, and when: what sizes alone hint at. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.video.signals import Signals

MIN_SHORT_BUMP = 0.35
_HINT = (2.2, 0.45)
_LIKELY_BLEND = 0.3
_NEIGHBOURHOOD, _SURROUNDING = 5, 6
_MEDIAN_TO_HIGH = 1.5  # the 85th percentile of inter sizes over their median


def candidates(signals: Signals, key: int, end: int, min_ratio: float, min_share: float) -> list[int]:
    """Non-key samples in (key, end) that stand out by size, the largest first."""
    inner = np.arange(key + 1, min(end, signals.next_key(key)))
    sizes = signals.index.size_bytes
    usable = signals.is_reference[inner] & signals.index.is_readable[inner] & (signals.key_share[inner] > min_share)
    if not usable.any():  # mostly: what follows costs more
        return []
    usable &= np.maximum(signals.size_ratio[inner], _over_neighbours(sizes[inner])) > min_ratio
    found = [
        int(sample)
        for sample in inner[usable]
        if sizes[sample] == sizes[max(key + 1, sample - _NEIGHBOURHOOD) : min(end, sample + _NEIGHBOURHOOD + 1)].max()
    ]
    return sorted(found, key=lambda sample: -int(sizes[sample]))


def _over_neighbours(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each size over the median of its thirteen neighbours, itself included; 0 where there are fewer."""
    width = 2 * _SURROUNDING + 1
    if len(sizes) < width:
        return np.zeros(len(sizes))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(sizes, width), axis=1)
    return np.asarray(sizes / np.maximum(1.0, np.pad(medians, _SURROUNDING, mode="edge")) / _MEDIAN_TO_HIGH, np.float64)


def size_events(signals: Signals) -> list[float]:
    """The instants at which sizes hint at a cut or transition between keys, in seconds."""
    events = [
        float(signals.t_s[sample])
        for key in signals.anchors.tolist()
        for sample in candidates(signals, key, signals.next_key(key), *_HINT)
    ]
    events += [bump.start_s for bump in signals.bumps if signals.has_short_gops and bump.rise >= MIN_SHORT_BUMP]
    events += [place.t_s for place in signals.blends if place.likelihood >= _LIKELY_BLEND]
    return sorted(events)


def is_step(signals: Signals, sample: int) -> bool:
    index = signals.index
    return bool(signals.is_reference[sample] and index.is_readable[sample] and not index.is_key[sample])
