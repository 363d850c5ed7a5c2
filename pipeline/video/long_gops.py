"""Cuts where keys are seconds apart, most of them where the encoder saw a new scene. Pure."""

from __future__ import annotations

import bisect

import numpy as np

from pipeline.video.evidence import Evidence, Run
from pipeline.video.judging import DIFFERENT, STRONG_KEY_RATIO, Judge
from pipeline.video.likely import Place
from pipeline.video.signals import Signals
from pipeline.video.verdicts import Kind, is_flash, judged, looks, unpredicted

_MIXED_S, _SPREAD_S = 0.5, 0.8
_CLEAR_KEY_RATIO, _THERE_AND_BACK = 4.0, 2
_AFTER_BLEND_S = 1.5
_SURE_BLEND, _UNSEEN_BLEND, _UNSEEN_BLEND_BESIDE_CUT = 0.95, 0.5, 0.8
_UNSEEN_BLEND_ON_KEY = 0.35


class LongGops(Judge):
    def __init__(self, signals: Signals, evidence: Evidence, *, is_final: bool) -> None:
        super().__init__(signals, evidence, is_final=is_final)
        self.telling = [key for key in self.seen if not self.is_blended(key, _MIXED_S)]

    def distance(self, before: int, after: int) -> float:
        """Between two keys, or the next beyond where one lies within a blend: it shows both scenes, and differs little
        from either."""
        earlier = self.telling[: bisect.bisect_right(self.telling, before)]
        later = self.telling[bisect.bisect_left(self.telling, after) :]
        apart = self.evidence.change(earlier[-1] if earlier else before, later[0] if later else after)
        return max(apart.distance, self.evidence.change(before, after).distance)

    def pair(self, before: int, after: int) -> None:
        distance = self.distance(before, after)
        between = self.between(before, after)
        if between and self.is_final:
            self.unseen(before, [*between, after], distance)
            return
        if distance < DIFFERENT or self.was_watched(before, after, distance):
            return
        if between:
            if not self.interval_cuts(before, after, distance):
                self.bisections.append((-distance, Run((self.likeliest(between, after),))))
            return
        blends = self.blends(before, after)
        if blends is None:
            return
        self.take(blends, distance)
        self.second_cut(before, distance)
        is_explained = self.is_after_blend(after) or self.key_cut(after, distance)
        if not (is_explained or blends or self.inner_cuts(before, after, distance)):
            self.unexplained.add((before, after))

    def outstanding(self, key: int, end: int, min_ratio: float, min_share: float) -> list[int]:
        found = super().outstanding(key, end, min_ratio, min_share)
        return [sample for sample in found if not self.is_blended(sample, _SPREAD_S)]

    def unseen(self, before: int, keys: list[int], distance: float) -> None:
        """Between decoded keys stand some that could not be decoded: what sizes make clear is believed. A key is, but
        not what a flash leaves: a key and its like within four samples. Between pictures that are alike lies no change,
        or several."""
        is_alike = distance < DIFFERENT
        clear = self.clear_keys(keys, _CLEAR_KEY_RATIO if is_alike else STRONG_KEY_RATIO)
        blends = self.blends(before, keys[-1]) or []
        if not is_alike or len(clear) + len(blends) >= _THERE_AND_BACK:
            self.cuts += [self.cut(key, 0.6 * max(distance, DIFFERENT)) for key in clear]
            self.take(blends, max(distance, DIFFERENT))

    def clear_keys(self, keys: list[int], least: float) -> list[int]:
        """Of undecoded keys those that sizes make cuts."""
        found = [key for key in keys if self.signals.is_irregular[key] and self.signals.size_ratio[key] >= least]
        return [key for key in found if not is_flash(self.signals, key) and not self.is_after_blend(key)]

    def is_blended(self, sample: int, around_s: float) -> bool:
        """Whether a likely blend, not one that glances deny, is about that near."""
        t_s = float(self.signals.t_s[sample])
        around = self.signals.blends_between(t_s - around_s, t_s + around_s)
        return any(place.likelihood > _UNSEEN_BLEND and not self.is_denied(place) for place in around)

    def is_denied(self, place: Place) -> bool:
        """Whether glances were made and show that nothing is blended."""
        wanted = looks(self.signals, place) if self.signals.can_glance else []
        intra = unpredicted(self.evidence, wanted) if wanted else None
        return intra is not None and judged(place, intra, has_short_gops=False) is not Kind.GRADUAL

    def tail_of_stream(self, key: int) -> None:
        """After the last key no later picture can be compared: only what glances confirm, or sizes make certain."""
        super().tail_of_stream(key)
        for place in self.signals.blends_between(float(self.signals.t_s[key]), float("inf")):
            if self.is_blend(place, is_beside_cut=True, sure=1.0):
                self.cuts.append(self.cut(place.sample, 0.7, is_gradual=True))

    def is_after_blend(self, key: int) -> bool:
        """Whether a blend so short before a key explains a difference that the key would: light changes, too, make
        encoders set keys. Where glances are possible they tell."""
        t_s = float(self.signals.t_s[key])
        around = self.signals.blends_between(t_s - _AFTER_BLEND_S, t_s)
        return not self.signals.can_glance and any(place.likelihood > _UNSEEN_BLEND_BESIDE_CUT for place in around)

    def blends(self, before: int, after: int) -> list[Place] | None:
        """The dissolves and fades between two keys; None while more is asked for."""
        is_beside = bool(self.signals.is_irregular[after] and self.signals.size_ratio[after] >= STRONG_KEY_RATIO)
        places = self.signals.blends_between(float(self.signals.t_s[before]), float(self.signals.t_s[after]))
        verdicts = [(place, self.is_blend(place, is_beside_cut=is_beside)) for place in places]
        is_asked = any(is_blend is None for _, is_blend in verdicts)
        return None if is_asked else [place for place, is_blend in verdicts if is_blend]

    def take(self, blends: list[Place], distance: float) -> None:
        self.cuts += [self.cut(place.sample, 0.8 * distance, is_gradual=True) for place in blends]

    def is_blend(self, place: Place, *, is_beside_cut: bool, sure: float = _SURE_BLEND) -> bool | None:
        """Whether a scene is blended into the next at a place; None while that is asked for."""
        if self.signals.can_glance and place.likelihood < sure:
            wanted = looks(self.signals, place)
            missing = [look for look in wanted if look not in self.evidence.done]
            if missing and not self.is_final:
                self.wishes += missing
                return None
            if (intra := unpredicted(self.evidence, wanted)) is not None:
                return judged(place, intra, has_short_gops=False) is Kind.GRADUAL
        if self.signals.can_glance and self.is_on_key(place):
            return place.likelihood >= _UNSEEN_BLEND_ON_KEY
        return place.likelihood >= (_UNSEEN_BLEND_BESIDE_CUT if is_beside_cut else _UNSEEN_BLEND)

    def is_on_key(self, place: Place) -> bool:
        """Whether the encoder set a key within a likely blend."""
        near = np.abs(self.signals.t_s[self.signals.anchors] - place.t_s) < _MIXED_S
        return bool(self.signals.is_irregular[self.signals.anchors[near]].any())
