"""What judging the stretches between decoded keys has in common, however far apart keys are. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from pipeline.video.evidence import Evidence, Run, Wish
from pipeline.video.findings import Cut
from pipeline.video.hints import candidates
from pipeline.video.likely import Place
from pipeline.video.signals import Signals
from pipeline.video.verdicts import Kind, is_violent, judged, look_before, looks, unpredicted
from pipeline.video.watching import STEP, watching, whole_anchors

DIFFERENT = 0.42
"""Pictures at least this distant may belong to different scenes."""
REPLACED_AREA = 0.25
_REPLACED = 0.38
_UNSEEN_RATIO, _UNSEEN_SHARE, _UNSEEN_DISTANCE = 2.2, 0.45, 0.97
STRONG_KEY_RATIO, _UNSEEN_KEY_RATIO = 2.4, 2.0
_STILL_SHARE = 0.35
_ACTIVITY_STEP = 1.2
_JUMP_FACTOR = 1.7
_JUMP_DISTANCE = 0.5
_LASTING_S = 0.3
_MIN_KEY_INTERVAL_S = 1.1
_SECOND_SHARE = 0.7
_STEP_AREA = 0.4


class Judge:
    """Collects cuts and wishes while the pairs of neighbouring decoded anchors are gone through."""

    def __init__(self, signals: Signals, evidence: Evidence, *, is_final: bool) -> None:
        self.signals, self.evidence, self.is_final = signals, evidence, is_final
        self.cuts: list[Cut] = []
        self.wishes: list[Wish] = []
        self.bisections: list[tuple[float, Run]] = []
        self.unexplained: set[tuple[int, int]] = set()
        self.seen = [sample for sample in whole_anchors(signals, evidence) if sample in evidence.exact]

    def pair(self, before: int, after: int) -> None:
        """Judges what lies between two neighbouring decoded anchors."""
        raise NotImplementedError

    def between(self, before: int, after: int) -> list[int]:
        """The anchors between two that could still be decoded."""
        first, last = (int(np.searchsorted(self.signals.anchors, sample)) for sample in (before, after))
        return [int(a) for a in self.signals.anchors[first + 1 : last] if int(a) not in self.evidence.failed]

    def key_cut(self, key: int, distance: float) -> bool:
        """Whether an irregular key begins a scene, or that is asked for. In doubt (a small key among large samples)
        look at the sample before it: the encoder puts such keys into violent motion too, and into blends."""
        if not self.signals.is_irregular[key]:
            return False
        ratio = self.signals.size_ratio[key]
        is_cut = bool(ratio >= STRONG_KEY_RATIO)
        if not is_cut and not self.signals.can_glance:
            is_cut = bool(ratio >= _UNSEEN_KEY_RATIO or distance > _UNSEEN_DISTANCE)
        elif not is_cut:
            look = look_before(self.signals, key)
            if look and look not in self.evidence.done and not self.is_final:
                self.wishes.append(look)
                return True
            is_cut = look is None or not is_violent(self.evidence, look)
        if is_cut:
            self.cuts.append(self.cut(key, distance))
        return is_cut

    def second_cut(self, key: int, distance: float) -> None:
        """Looks for a cut so soon after an irregular key that the encoder might not set another one."""
        if not self.signals.is_irregular[key]:
            return
        t_s, sizes = self.signals.t_s, self.signals.index.size_bytes
        for sample in self.outstanding(key, self.signals.next_key(key), 2.2, 0.45)[:1]:
            if t_s[sample] - t_s[key] < _MIN_KEY_INTERVAL_S and sizes[sample] > _SECOND_SHARE * sizes[key]:
                self.replaces(key, sample, distance)

    def interval_cuts(self, before: int, after: int, distance: float) -> bool:
        """Whether a cut between keys that are not neighbours was found, or is asked for, without the keys between."""
        keys = [int(a) for a in self.signals.anchors if before <= a < after and int(a) not in self.evidence.failed]
        suspects = [
            (sample, key) for key in keys for sample in self.outstanding(key, self.signals.next_key(key), 1.6, 0.2)[:1]
        ]
        suspects.sort(key=lambda suspect: -int(self.signals.index.size_bytes[suspect[0]]))
        for sample, key in suspects[:2]:
            verdict = self.replaces(key, sample, distance)
            if verdict is not False:
                return True
        return False

    def inner_cuts(self, key: int, end: int, distance: float) -> bool:
        """Whether a sample within the GOP was found to replace the picture; asks for those not looked at."""
        ratio, share, tries = (1.2, 0.1, 3) if self.signals.has_short_gops else (1.5, 0.25, 2)
        if end < len(self.signals.index) and self.signals.is_irregular[end]:
            ratio, share, tries = 2.2, 0.45, 1  # violent motion put that key there and explains the difference
        inner = self.outstanding(key, end, ratio, share)[:tries]
        found = False
        for sample in inner:
            verdict = self.replaces(key, sample, distance)
            if verdict is None:
                return True  # judged again when it was looked at
            found |= verdict
        return found

    def replaces(self, key: int, sample: int, distance: float) -> bool | None:
        """Whether `sample` replaces the picture of the key before it; None while that is asked for."""
        if self.signals.can_glance and not self.signals.has_short_gops:
            is_new = self.begins_scene(sample)
        elif self.signals.can_patch:  # in short GOPs the key is wanted anyway
            is_new = self.shows_other(Run((key, sample), is_patched=True))
        else:
            ratio, share = self.signals.size_ratio[sample], self.signals.key_share[sample]
            is_new = bool(ratio > _UNSEEN_RATIO and share > _UNSEEN_SHARE)
        if is_new:
            self.cuts.append(self.cut(sample, distance))
        return is_new

    def outstanding(self, key: int, end: int, min_ratio: float, min_share: float) -> list[int]:
        """The samples of a GOP that stand out by size, but not those of a likely blend, the largest first."""
        return candidates(self.signals, key, end, min_ratio, min_share)

    def begins_scene(self, sample: int) -> bool | None:
        """Whether nothing of a sample could be predicted, and what follows is not a flash's end."""
        place = Place(sample, float(self.signals.t_s[sample]), 0.5, is_gradual=False)
        wanted = looks(self.signals, place)
        missing = [look for look in wanted if look not in self.evidence.done]
        if missing and not self.is_final:
            self.wishes += missing
            return None
        intra = unpredicted(self.evidence, wanted)
        return intra is not None and judged(place, intra) is Kind.HARD

    def shows_other(self, run: Run) -> bool | None:
        """Whether a sample, decoded onto the key before it, replaces what that showed."""
        if run not in self.evidence.done and not self.is_final:
            self.wishes.append(run)
            return None
        replaced = self.evidence.across(run)
        return replaced is not None and replaced.distance > _REPLACED and replaced.area > REPLACED_AREA

    def likeliest(self, between: list[int], after: int) -> int:
        """Of the keys between two that differ, one beside the key at which a cut is likeliest: where the sizes of
        keys or the activity change most, both of which stay alike within a scene."""
        sizes = self.signals.index.size_bytes
        keys = [*between, after]
        anchors = self.signals.anchors
        signs = []
        for key in keys:
            previous = int(anchors[np.searchsorted(anchors, key) - 1])
            signs.append(abs(np.log(sizes[key] / max(1, sizes[previous]))) + self.activity_step(key))
        best = int(np.argmax(signs))
        return between[min(best, len(between) - 1)]

    def tail_of_stream(self, key: int) -> None:
        """After the last key there is no later picture to compare: only the strongest sample is tried."""
        if watching(self.signals, key, len(self.signals.index)) in self.evidence.done:
            return
        if self.signals.can_patch or self.signals.can_glance:
            for sample in candidates(self.signals, key, len(self.signals.index), 2.2, 0.4)[:1]:
                self.replaces(key, sample, DIFFERENT)

    def was_watched(self, before: int, after: int, distance: float) -> bool:
        """Whether everything between two keys that differ was decoded: then the cut is where the pictures say."""
        run = watching(self.signals, before, after)
        if run not in self.evidence.done:
            return False
        seen = [sample for sample in (*run.samples, after) if sample in self.evidence.exact]
        if not self.steps(seen):
            turned = next(s for s in seen[1:] if s == after or self._is_nearer(s, after, before))
            self.cuts.append(self.cut(turned, 0.8 * distance, is_gradual=True))
        return True

    def _is_nearer(self, sample: int, after: int, before: int) -> bool:
        return self.evidence.change(sample, after).distance < self.evidence.change(before, sample).distance

    def sequences(self) -> None:
        """Samples decoded one after the other show a cut directly."""
        for run in self.evidence.done:
            if isinstance(run, Run) and not run.is_patched and len(run.samples) > 1:
                self.steps([sample for sample in run.samples if sample in self.evidence.exact])

    def steps(self, seen: list[int]) -> bool:
        """Whether one picture to the next differs, and still does 0.3 s later: a flash does not last."""
        found, t_s = False, self.signals.t_s
        for position, (before, after) in enumerate(itertools.pairwise(seen)):
            change = self.evidence.change(before, after)
            if change.distance <= STEP or change.area <= _STEP_AREA:
                continue
            later = next((s for s in seen[position + 1 :] if t_s[s] >= t_s[after] + _LASTING_S), seen[-1])
            if self.evidence.change(before, later).distance > STEP:
                self.cuts.append(self.cut(after, change.distance))
                found = True
        return found

    def jumps(self, seen: list[int]) -> None:
        """A cut exactly on a regular key: no size outlier tells it, but what surrounds the key does."""
        pairs = list(itertools.pairwise(seen))
        for position, pair in enumerate(pairs):
            if pair not in self.unexplained:
                continue
            change = self.evidence.change(*pair)
            if change.area > REPLACED_AREA and (
                self._is_still_gop(*pair)
                or self.activity_step(pair[1]) > _ACTIVITY_STEP
                or (self.signals.has_short_gops and self._stands_out(pairs, position))
            ):
                self.cuts.append(self.cut(pair[1], change.distance * 0.9))

    def _is_still_gop(self, key: int, end: int) -> bool:
        """Whether too few bytes lie between two keys for the picture to have changed before the second."""
        sizes = self.signals.index.size_bytes
        return bool(sizes[key + 1 : end].sum() < _STILL_SHARE * sizes[key])

    def activity_step(self, key: int) -> float:
        """By how much the activity differs just before and just after a key."""
        t_s = float(self.signals.t_s[key])
        before, after = self.signals.activity_at(t_s - 0.8, t_s - 0.3), self.signals.activity_at(t_s + 0.3, t_s + 0.8)
        return abs(float(np.median(after) - np.median(before))) if len(before) and len(after) else 0.0

    def _stands_out(self, pairs: list[tuple[int, int]], position: int) -> bool:
        """Whether a distance is far above those of the neighbouring pairs in the same shot."""
        distance = self.evidence.change(*pairs[position]).distance
        around = [self.evidence.change(*pairs[other]).distance for other in self._neighbours(pairs, position)]
        return bool(around) and distance > max(_JUMP_DISTANCE, _JUMP_FACTOR * max(around))

    def _neighbours(self, pairs: list[tuple[int, int]], position: int) -> Iterator[int]:
        """Up to two pairs on either side, of about the same length, not beyond a known cut."""
        t_s, cut_samples = self.signals.t_s, [cut.sample for cut in self.cuts]
        for step in (-1, 1):
            for other in (position + step, position + 2 * step):
                if not 0 <= other < len(pairs):
                    break
                before, after = pairs[other]
                if any(before < sample <= after for sample in cut_samples):
                    break
                if t_s[after] - t_s[before] <= 2.5 * self.signals.gop_s:
                    yield other

    def cut(self, sample: int, score: float, *, is_gradual: bool = False) -> Cut:
        return Cut(float(self.signals.t_s[sample]), sample, float(np.clip(score, 0, 1)), is_gradual)
