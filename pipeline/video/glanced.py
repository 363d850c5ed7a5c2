"""Cuts of short GOPs by glances: sizes say where to look, single samples say whether a scene begins. Pure.

A key every second leaves no room for keys on both sides of every change in two dozen ranged reads. One sample at the
suspicious instant needs no key: of a new scene nothing can be predicted, of a blend not much, while light, shake
and pans are predicted well. A flash comes back within four samples, a cut does not.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from pipeline.video.cuts import Cut, CutFindings, merged
from pipeline.video.evidence import Evidence, Look, Run, Wish
from pipeline.video.likely import Place
from pipeline.video.signals import Signals

_LOOK_BYTES = 24_000
_DENSE_PER_MINUTE, _DENSE_AT_LEAST = 9.5, 6.0
_NEW_SCENE, _BACK_AGAIN = 0.85, 0.4
_FLASH_SAMPLES, _FLASH_RATIO = 4, 1.4
_AROUND_S = 0.12
_BLEND_LEAST, _BLEND_SUM = 0.045, 0.13
_UNSEEN_HARD, _UNSEEN_GRADUAL = 0.6, 0.5
_LASTING_S = 0.17
_FADE_MOST, _FADE_LIKELY = 0.3, 0.6
_SETTLING_S = 0.8


class _Kind(Enum):
    NONE, HARD, GRADUAL = range(3)


def is_dense(signals: Signals) -> bool:
    """Whether there are so many suspicious places that keys a few seconds apart could not tell them apart."""
    if not (signals.can_glance and signals.has_short_gops):
        return False
    expected = sum(place.likelihood for place in signals.places)
    return expected >= max(_DENSE_AT_LEAST, _DENSE_PER_MINUTE * signals.index.duration_s / 60)


def looks(signals: Signals, place: Place) -> list[Look]:
    """What to look at to judge a place, only the beginning of each sample."""
    if place.is_gradual:
        samples = {_near(signals, place.t_s + shift_s) for shift_s in (-_AROUND_S, _AROUND_S)}
    else:
        samples = {place.sample}
        if (echo := _echo(signals, place.sample)) is not None:
            samples |= {echo, _near(signals, place.t_s + _LASTING_S)}
    return [Look(sample, _LOOK_BYTES) for sample in sorted(samples)]


def _near(signals: Signals, at_s: float) -> int:
    """The non-key sample nearest to an instant; there is one where there are places."""
    usable = np.flatnonzero(~signals.index.is_key & signals.index.is_readable & signals.is_reference)
    return int(usable[np.abs(signals.t_s[usable] - at_s).argmin()])


def _echo(signals: Signals, sample: int) -> int | None:
    """The largest of the next samples, if it stands out as the end of a flash would."""
    index = signals.index
    after = np.arange(sample + 1, min(len(index), sample + 1 + _FLASH_SAMPLES))
    later = np.arange(sample + 1 + _FLASH_SAMPLES, min(len(index), sample + 1 + 3 * _FLASH_SAMPLES))
    after, later = after[~index.is_key[after] & index.is_readable[after]], later[~index.is_key[later]]
    if not len(after) or not len(later):
        return None
    largest = int(after[index.size_bytes[after].argmax()])
    return largest if index.size_bytes[largest] > _FLASH_RATIO * np.median(index.size_bytes[later]) else None


def find_glanced_cuts(signals: Signals, evidence: Evidence, *, is_final: bool = False) -> CutFindings:
    """The cuts that glances support so far, those that sizes alone make certain enough, and what to look at."""
    cuts: list[Cut] = []
    wishes: list[Wish] = []
    for place in signals.places:
        wanted = looks(signals, place)
        missing = [look for look in wanted if look.sample not in evidence.glances]
        wishes += missing
        seen = [evidence.glances[look.sample] for look in wanted if look.sample in evidence.glances]
        if missing or any(glance is None for glance in seen):
            kind = _unseen(place, has_echo=len(wanted) > 1)
        else:
            kind = _judged(place, [glance.intra for glance in seen if glance is not None])
        if kind != _Kind.NONE:
            score = (0.6 if missing else 0.9) - 0.1 * (kind == _Kind.GRADUAL)
            cuts.append(Cut(place.t_s, place.sample, score, kind == _Kind.GRADUAL))
    return CutFindings(merged(cuts), () if is_final else tuple(wishes))


def _unseen(place: Place, *, has_echo: bool) -> _Kind:
    """What sizes alone make of a place that could not be looked at."""
    if place.is_gradual:
        return _Kind.GRADUAL if place.likelihood > _UNSEEN_GRADUAL else _Kind.NONE
    return _Kind.HARD if place.likelihood > _UNSEEN_HARD and not has_echo else _Kind.NONE


def _judged(place: Place, intra: list[float]) -> _Kind:
    """What the shares of unpredicted blocks, in order of time, make of a place."""
    if place.is_gradual:
        is_blend = min(intra) > _BLEND_LEAST and sum(intra) > _BLEND_SUM
        is_fade = max(intra) > _FADE_MOST and place.likelihood > _FADE_LIKELY
        return _Kind.GRADUAL if is_blend or is_fade else _Kind.NONE
    first, *later = intra
    if first > _NEW_SCENE and all(other < _BACK_AGAIN for other in later):
        return _Kind.HARD
    is_lasting = bool(later) and min(later) > _BACK_AGAIN and first > _BACK_AGAIN
    return _Kind.GRADUAL if is_lasting else _Kind.NONE


def shot_keys(signals: Signals, evidence: Evidence, cuts: tuple[Cut, ...], count: int) -> list[Run]:
    """The keys that would show the `count` longest shots, where none was decoded yet."""
    bounds = [0.0, *(cut.t_s for cut in cuts), signals.index.duration_s]
    settled = [0.0, *(cut.t_s + _SETTLING_S * cut.is_gradual for cut in cuts)]
    shots = sorted(zip(settled, bounds[1:], strict=True), key=lambda shot: shot[0] - shot[1])
    wishes: list[Run] = []
    for start_s, end_s in shots[:count]:
        t_s = signals.t_s[signals.anchors]
        inside = signals.anchors[(t_s >= start_s - 0.02) & (t_s < end_s - 0.05)].tolist()
        if inside and not any(key in evidence.exact or key in evidence.failed for key in inside):
            wishes.append(Run((inside[0],)))
    if not wishes and not evidence.exact:
        wishes = [Run((key,)) for key in signals.anchors[:1].tolist() if key not in evidence.failed]
    return wishes
