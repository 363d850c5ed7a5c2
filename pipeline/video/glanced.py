"""Cuts of short GOPs by glances: sizes say where to look, single samples say whether a scene begins. Pure.

A key every second leaves no room for keys on both sides of every change in two dozen ranged reads. One sample at the
suspicious instant needs no key: of a new scene nothing can be predicted, of a blend not much, while light, shake
and pans are predicted well. A flash comes back within four samples, a cut does not.
"""

from __future__ import annotations

from pipeline.video.evidence import Evidence, Run, Wish
from pipeline.video.findings import Cut, CutFindings, merged
from pipeline.video.likely import Place
from pipeline.video.signals import Signals
from pipeline.video.verdicts import Kind, judged, looks

_DENSE_PER_MINUTE, _DENSE_AT_LEAST = 9.5, 6.0
_CLEAR, _CLEAR_PER_MINUTE, _BLENDS_PER_MINUTE = 0.9, 6, 4
_UNSEEN_HARD, _UNSEEN_GRADUAL = 0.6, 0.5
_SETTLING_S = 0.8


def is_dense(signals: Signals) -> bool:
    """Whether there are so many suspicious places that keys a few seconds apart could not tell them apart."""
    if not (signals.can_glance and signals.has_short_gops):
        return False
    minutes = signals.index.duration_s / 60
    expected = sum(place.likelihood for place in signals.places)
    blends = sum(place.likelihood for place in signals.places if place.is_gradual)
    clear = sum(place.likelihood > _CLEAR for place in signals.places if not place.is_gradual)
    is_edited = blends >= _BLENDS_PER_MINUTE * minutes or clear >= _CLEAR_PER_MINUTE * minutes
    return is_edited and expected >= max(_DENSE_AT_LEAST, _DENSE_PER_MINUTE * minutes)


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
            kind = judged(place, [glance.intra for glance in seen if glance is not None])
        if kind != Kind.NONE:
            score = (0.6 if missing else 0.9) - 0.1 * (kind == Kind.GRADUAL)
            cuts.append(Cut(place.t_s, place.sample, score, kind == Kind.GRADUAL))
    return CutFindings(merged(cuts), () if is_final else tuple(wishes))


def _unseen(place: Place, *, has_echo: bool) -> Kind:
    """What sizes alone make of a place that could not be looked at."""
    if place.is_gradual:
        return Kind.GRADUAL if place.likelihood > _UNSEEN_GRADUAL else Kind.NONE
    return Kind.HARD if place.likelihood > _UNSEEN_HARD and not has_echo else Kind.NONE


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
