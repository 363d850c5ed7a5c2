"""Which frames to keep: about five a minute, each with the reason that makes it telling. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.media import Keyframe, KeyframeReason, KeyframeSettings
from pipeline.video.evidence import Evidence
from pipeline.video.findings import Cut
from pipeline.video.motion import Motion
from pipeline.video.signals import Signals

_SAME_PICTURE = 0.06
_OTHER_LEVELS = 40.0
_SETTLING_S = 0.8  # a gradual change is placed early in it
_SHARP_WITHIN_S, _SHARPER = 2.0, 1.25
_LONG_SHOT_S = 6.0
_SCENE_LAG_S = 4.0
_MOTION_MIDDLE = 0.5
_MAX_REACH = 100
_MANY_KEYFRAMES = 10
_CHEAP_PIXELS = 5e6
_WEIGHT = {
    KeyframeReason.START: 0.9,
    KeyframeReason.SCENE_CUT: 1.0,
    KeyframeReason.MOTION: 0.95,
    KeyframeReason.COVERAGE: 0.5,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A keyframe and the sample that shows it."""

    sample: int
    keyframe: Keyframe


@dataclass(frozen=True, slots=True)
class _Offer:
    sample: int
    reason: KeyframeReason
    score: float
    rank: float


def wanted_keyframes(duration_s: float, settings: KeyframeSettings) -> int:
    """About `per_minute`, at least one, at most `max_keyframes`."""
    return int(np.clip(int(settings.per_minute * duration_s / 60 + 0.5), 1, max(1, settings.max_keyframes)))


def choose_keyframes(
    signals: Signals,
    evidence: Evidence,
    cuts: Sequence[Cut],
    motion: Sequence[Motion],
    settings: KeyframeSettings,
    frames_left: int,
    watched_left: int = 0,
    bytes_left: int = 1 << 60,
) -> list[Choice]:
    """The most telling frames in time order.

    Whatever was decoded whole and stands for itself comes first; a sample between keys is taken only for motion
    that no key shows, while the frames to reach it fit in `frames_left`, and for scenes without a key that were
    watched, while they fit in `watched_left`; and either only while what must be read for it fits in `bytes_left`.
    """
    usable = _usable(signals, evidence)
    if not usable:
        return []
    chooser = _Chooser(signals, evidence, settings, usable, bytes_left)
    offers = chooser.scenes(cuts, watched_left) + chooser.motion(motion, frames_left)
    count = wanted_keyframes(signals.index.duration_s, settings)
    ranked = sorted(offers, key=lambda offer: -offer.rank)
    chooser.take_from_parts(ranked, count)
    chooser.take(ranked, count)
    chooser.cover(count)
    return sorted(chooser.chosen, key=lambda choice: choice.keyframe.t_s)


def reach(signals: Signals, sample: int) -> list[int]:
    """The samples to decode for `sample`, from its key on, itself last."""
    keys = np.flatnonzero(signals.index.is_key[: sample + 1])
    return list(range(int(keys[-1]), sample + 1)) if len(keys) else []


def _usable(signals: Signals, evidence: Evidence) -> list[int]:
    """Decoded keys that show something; where none does, any decoded sample."""
    index = signals.index
    decoded = sorted(sample for sample in evidence.exact if index.is_shown[sample])
    whole = [s for s in decoded if index.is_key[s] and s not in evidence.not_intra]
    telling = [sample for sample in whole if not evidence.exact[sample].is_blank]
    return telling or whole or decoded or sorted(evidence.exact)


class _Chooser:
    def __init__(
        self, signals: Signals, evidence: Evidence, settings: KeyframeSettings, usable: list[int], bytes_left: int
    ) -> None:
        self.signals, self.evidence, self.settings, self.usable = signals, evidence, settings, usable
        self.bytes_left = bytes_left
        self.chosen: list[Choice] = []

    def bytes_to_read(self, sample: int) -> int:
        """What showing a sample takes that was not read yet: nothing for what was decoded."""
        if sample in self.usable:
            return 0
        unread = [step for step in reach(self.signals, sample) if step not in self.evidence.exact]
        return int(self.signals.index.size_bytes[unread].sum())

    def scenes(self, cuts: Sequence[Cut], watched_left: int) -> list[_Offer]:
        """The first usable key of every shot, else a sample that was watched; longer shots first."""
        duration_s = self.signals.index.duration_s
        bounds = [0.0, *(cut.t_s for cut in cuts), duration_s]
        offers = []
        for position, (start_s, end_s) in enumerate(itertools.pairwise(bounds)):
            is_gradual = position > 0 and cuts[position - 1].is_gradual
            sample = self._first_between(start_s + _SETTLING_S, end_s) if is_gradual else None
            if sample is None:
                sample = self._first_between(start_s, end_s)
            is_late = sample is None or self.signals.t_s[sample] > start_s + _SHARP_WITHIN_S
            if is_late and (watched := self._watched_between(start_s, end_s, watched_left)):
                sample, cost = watched
                watched_left -= cost
            if sample is None:
                continue
            is_start = position == 0
            score = 1.0 if is_start else cuts[position - 1].score
            reason = KeyframeReason.START if is_start else KeyframeReason.SCENE_CUT
            length = min(1.0, 0.4 + 0.6 * (end_s - start_s) / _LONG_SHOT_S)
            offers.append(_Offer(sample, reason, score, _WEIGHT[reason] * score * length))
        return offers

    def motion(self, motion: Sequence[Motion], frames_left: int) -> list[_Offer]:
        """The key nearest to the middle of each motion, else a sample within it that is cheap to reach."""
        offers = []
        for moving in sorted(motion, key=lambda moving: -moving.score):
            middle_s = moving.start_s + _MOTION_MIDDLE * (moving.end_s - moving.start_s)
            inside = [s for s in self.usable if moving.start_s + 0.2 <= self.signals.t_s[s] < moving.end_s]
            if inside:
                sample = min(inside, key=lambda s: abs(float(self.signals.t_s[s]) - middle_s))
            else:
                between = self._between_keys(moving, frames_left)
                if between is None:
                    continue
                sample, cost = between
                frames_left -= cost
            score = 0.5 + 0.5 * moving.score
            offers.append(_Offer(sample, KeyframeReason.MOTION, score, _WEIGHT[KeyframeReason.MOTION] * score))
        return offers

    def _between_keys(self, moving: Motion, frames_left: int) -> tuple[int, int] | None:
        """A reference sample some way into the motion, and what reaching it costs in frames."""
        signals = self.signals
        start_s = moving.start_s + min(0.8, 0.5 * (moving.end_s - moving.start_s))
        inside = (signals.t_s >= start_s) & (signals.t_s < moving.end_s) & signals.is_reference
        samples = np.flatnonzero(inside & signals.index.is_readable & signals.index.is_shown)
        if not len(samples):
            return None
        path = reach(signals, int(samples[0]))
        cost = int(signals.is_reference[path].sum()) + len(path) // 4
        fits = path and path[0] not in self.evidence.failed and signals.index.is_readable[path].all()
        return (int(samples[0]), cost) if fits and cost <= min(frames_left, _MAX_REACH) else None

    def _watched_between(self, start_s: float, end_s: float, frames_left: int) -> tuple[int, int] | None:
        """The sharpest early sample of those that were decoded between keys, else the first, and what it costs."""
        index, t_s = self.signals.index, self.signals.t_s
        end_s = min(end_s - 0.05, start_s + _SHARP_WITHIN_S)
        usable = self.signals.is_reference & index.is_readable & index.is_shown
        inside = np.flatnonzero(usable & (t_s >= start_s + 0.1) & (t_s <= end_s)).tolist()
        exact = self.evidence.exact
        watched = [sample for sample in inside if sample in exact and not exact[sample].is_blank]
        sample = max(watched, key=self._sharpness) if watched else next(iter(inside), None)
        path = reach(self.signals, sample) if sample is not None else []
        cost = int(self.signals.is_reference[path].sum())
        pixels = 0 if watched else cost * index.facts.width_px * index.facts.height_px
        if sample is None or not path or path[0] in self.evidence.failed or not index.is_readable[path].all():
            return None
        if self.bytes_to_read(sample) > self.bytes_left:
            return None
        return (sample, cost) if cost <= frames_left and pixels <= _CHEAP_PIXELS else None

    def _first_between(self, start_s: float, end_s: float) -> int | None:
        end_s = min(end_s - 0.05, max(start_s + _SCENE_LAG_S, start_s + 0.5 * (end_s - start_s)))
        inside = [s for s in self.usable if start_s - 0.02 <= self.signals.t_s[s] <= end_s]
        if not inside:
            return None
        early = [s for s in inside if self.signals.t_s[s] <= self.signals.t_s[inside[0]] + _SHARP_WITHIN_S]
        sharpest = max(early, key=self._sharpness)
        return sharpest if self._sharpness(sharpest) > _SHARPER * self._sharpness(inside[0]) else inside[0]

    def _sharpness(self, sample: int) -> float:
        return self.evidence.exact[sample].sharpness

    def take_from_parts(self, offers: Sequence[_Offer], count: int) -> None:
        """Most of many keyframes from equal parts of the video: no part of a long one keeps others from sight."""
        if count < _MANY_KEYFRAMES:
            return
        for parts, each in ((count // 2, 1), (count // 5, 2)):
            length_s = max(self.signals.index.duration_s, 0.001) / parts
            for part in range(parts):
                inside = [offer for offer in offers if part <= self.signals.t_s[offer.sample] / length_s < part + 1]
                self.take(inside, min(count, len(self.chosen) + each))

    def take(self, offers: Sequence[_Offer], count: int) -> None:
        """The best offers, without scenes that look like one already taken."""
        for offer in offers:
            is_copy = offer.reason is KeyframeReason.SCENE_CUT and self._difference(offer.sample) < _SAME_PICTURE
            fits = self.bytes_to_read(offer.sample) <= self.bytes_left
            if len(self.chosen) < count and self._is_apart(offer.sample) and fits and not is_copy:
                self._choose(offer)

    def cover(self, count: int) -> None:
        """Fills up with the keys farthest from those chosen, in time and in what they show."""
        duration_s = max(self.signals.index.duration_s, 0.001)
        while len(self.chosen) < count:
            rest = [sample for sample in self.usable if self._is_apart(sample)]
            if not rest:
                return
            worth = [self._news(sample, duration_s) for sample in rest]
            best = int(np.argmax(worth))
            reason = KeyframeReason.COVERAGE if self.chosen else KeyframeReason.START
            self._choose(_Offer(rest[best], reason, float(np.clip(worth[best], 0, 1)), 0.0))

    def _news(self, sample: int, duration_s: float) -> float:
        if not self.chosen:
            return 1.0 - float(self.signals.t_s[sample]) / duration_s
        gap_s = min(abs(float(self.signals.t_s[sample]) - choice.keyframe.t_s) for choice in self.chosen)
        difference = self._difference(sample)
        return 2 * gap_s / duration_s * (0.5 if difference < _SAME_PICTURE else 1.0) + 0.3 * difference

    def _difference(self, sample: int) -> float:
        """From the most alike of those chosen, 0..1, by a mean of 16x9 pixels: quick, as all are compared with all."""
        if sample not in self.evidence.exact:
            return 1.0
        shown = self.evidence.exact[sample].coarse
        others = [self.evidence.exact[c.sample].coarse for c in self.chosen if c.sample in self.evidence.exact]
        levels = [float(np.abs(shown - other).mean()) for other in others]
        return min(1.0, min(levels) / _OTHER_LEVELS) if levels else 1.0

    def _is_apart(self, sample: int) -> bool:
        t_s = float(self.signals.t_s[sample])
        return all(abs(t_s - choice.keyframe.t_s) >= self.settings.min_gap_s for choice in self.chosen)

    def _choose(self, offer: _Offer) -> None:
        index = self.signals.index
        self.bytes_left -= self.bytes_to_read(offer.sample)
        t_s = max(0.0, float(self.signals.t_s[offer.sample]))
        keyframe = Keyframe(t_s, int(index.pts[offer.sample]), offer.reason, float(np.clip(offer.score, 0, 1)))
        self.chosen.append(Choice(offer.sample, keyframe))
