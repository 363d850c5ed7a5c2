"""Where one scene ends and another begins, judged from sizes and a few decoded pictures. Pure.

Every judgement that lacks a picture says which run it wishes for; `plan` decides what is affordable.
The constants were set on public clips cut together with known cuts (H.264 and HEVC, long and short GOPs).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.video.compare import change
from pipeline.video.evidence import Evidence, Run, Wish
from pipeline.video.signals import Bump, Signals

DIFFERENT = 0.42
"""Pictures at least this distant may belong to different scenes."""
_REPLACED = 0.38
_REPLACED_AREA = 0.25
_UNSEEN_RATIO, _UNSEEN_SHARE, _UNSEEN_DISTANCE = 2.2, 0.45, 0.97
_STRONG_KEY_RATIO, _UNSEEN_KEY_RATIO = 2.4, 2.0
_MOVING_BEFORE, _MOVING_AREA = 0.3, 0.4
_STILL_AFTER = 0.05
_FADING_AFTER = 0.6
_STILL_SHARE = 0.35
_ACTIVITY_STEP = 1.2
_JUMP_FACTOR = 1.7
_JUMP_DISTANCE = 0.5
_MIN_KEY_INTERVAL_S = 1.1
_SECOND_SHARE = 0.7
_MIN_BUMP, _BUMP_BESIDE_CUT, _BUMP_SHARE = 0.7, 1.0, 0.7
_BUMP_BESIDE_CUT_S = 0.65
_MIN_SHORT_BUMP = 0.35
_MAX_BUMP_STEPS = 6
_INTO_BUMP_S, _INTO_BUMP_SHARE = 0.3, 0.4
_OUTLIER = (3.0, 0.45)
_SAME_EVENT_S = 0.25
_FEW_KEYS = 3
_UNREFINED_RATIO = 1.7
_SHORT_DIFFERENT = 0.6
_HINT = (2.2, 0.45)
_TAIL = 3
_HEAD = 4
_NEIGHBOURHOOD, _SURROUNDING = 5, 6
_MEDIAN_TO_HIGH = 1.5  # the 85th percentile of inter sizes over their median
_SAME_CUT_S, _SAME_TRANSITION_S = 0.4, 0.9
_LASTING_S = 0.3
_SMALL_PIXELS, _CHEAP_PIXELS, _CHEAP_BYTES = 500_000, 15e6, 200_000
_STEP, _STEP_AREA = 0.3, 0.4
_LAST_HINT, _LAST_CLEAR_HINT = (1.0, 0.05), (1.5, 0.2)
_HIDING_CODECS = frozenset(("vp8", "vp9", "av1"))
"""Their encoders smear a cut's bytes over several samples, for want of bits or by alternate references."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The first sample of a new scene; `score` in 0..1; gradual ones are placed within the transition."""

    t_s: float
    sample: int
    score: float
    is_gradual: bool = False


@dataclass(frozen=True, slots=True)
class CutFindings:
    cuts: tuple[Cut, ...]
    wishes: tuple[Wish, ...]


def find_cuts(signals: Signals, evidence: Evidence, *, is_final: bool = False) -> CutFindings:
    """The cuts that the evidence supports so far, and the runs that would settle the doubtful places.

    `is_final` says that no wish will be granted any more: what is doubtful is judged as it stands.
    """
    judge = _Judge(signals, evidence, is_final=is_final)
    seen = [sample for sample in whole_anchors(signals, evidence) if sample in evidence.exact]
    for before, after in itertools.pairwise(seen):
        judge.pair(before, after)
    if seen:
        judge.tail_of_stream(seen[-1])
    judge.jumps(seen)
    judge.sequences()
    farthest_first = [run for _, run in sorted(judge.bisections, key=lambda bisection: bisection[0])]
    return CutFindings(merged(judge.cuts), tuple(dict.fromkeys([*judge.wishes, *farthest_first])))


def candidates(signals: Signals, key: int, end: int, min_ratio: float, min_share: float) -> list[int]:
    """Non-key samples in (key, end) that stand out by size, the largest first."""
    inner = np.arange(key + 1, min(end, signals.next_key(key)))
    sizes = signals.index.size_bytes
    usable = (
        signals.is_reference[inner]
        & signals.index.is_readable[inner]
        & (np.maximum(signals.size_ratio[inner], _over_neighbours(sizes[inner])) > min_ratio)
        & (signals.key_share[inner] > min_share)
    )
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


class _Judge:
    """Collects cuts and wishes while the pairs of neighbouring decoded anchors are gone through."""

    def __init__(self, signals: Signals, evidence: Evidence, *, is_final: bool) -> None:
        self.signals, self.evidence, self.is_final = signals, evidence, is_final
        self.cuts: list[Cut] = []
        self.wishes: list[Run] = []
        self.bisections: list[tuple[float, Run]] = []
        self.unexplained: set[tuple[int, int]] = set()

    def pair(self, before: int, after: int) -> None:
        distance = self.evidence.change(before, after).distance
        if distance < DIFFERENT or self.was_watched(before, after, distance):
            return
        anchors = self.signals.anchors
        first, last = (int(np.searchsorted(anchors, sample)) for sample in (before, after))
        if last - first > 1:
            if self.signals.has_short_gops and self.told_by_sizes(before, after, distance):
                return
            if self.interval_cuts(before, after, distance):
                return
            between = [int(a) for a in anchors[first + 1 : last] if int(a) not in self.evidence.failed]
            if between:
                several = between if len(between) <= _FEW_KEYS and self.signals.has_short_gops else []
                wanted = several or [self._likeliest(between, after)]
                self.bisections += [(-distance, Run((key,))) for key in wanted]
                if self.is_final and self.signals.has_short_gops:
                    self.unrefined(before, after, distance)
                elif self.is_final:
                    self.transitions(before, after, distance, is_explained=False)
                return
        self.second_cut(before, distance)
        if self.signals.has_short_gops and self.told_by_sizes(before, after, distance):
            return
        is_explained = self.key_cut(before, after, distance)
        if not self.signals.has_short_gops and self.transitions(before, after, distance, is_explained=is_explained):
            return
        if is_explained:
            return
        if self.signals.has_short_gops and self.is_final and distance > _SHORT_DIFFERENT:
            self.unrefined(before, after, distance)
        elif not self.inner_cuts(before, after, distance):
            self.unexplained.add((before, after))

    def unrefined(self, before: int, after: int, distance: float) -> None:
        """Keys some seconds apart that differ, and nothing more may be read: the sample that stands out most."""
        if self.evidence.change(before, after).area < _REPLACED_AREA:
            return
        inner = np.arange(before + 1, after)
        usable = inner[self.signals.is_reference[inner] & ~self.signals.index.is_key[inner]]
        bumps = self.signals.bumps_between(float(self.signals.t_s[before]), float(self.signals.t_s[after]), 0.2)
        best = int(usable[np.argmax(self.signals.size_ratio[usable])]) if len(usable) else after
        if self.signals.size_ratio[best] > _UNREFINED_RATIO:
            self.cuts.append(self.cut(best, 0.7 * distance))
        elif bumps:
            self.cuts.append(self.gradual(max(bumps, key=lambda bump: bump.rise), 0.6 * distance))
        elif self.signals.next_key(before) == after:
            self.cuts.append(self.cut(after, 0.6 * distance))  # no sample between stands out: the key itself is it
        else:
            middle_s = float(self.signals.t_s[before] + self.signals.t_s[after]) / 2
            self.cuts.append(self.cut(int(np.abs(self.signals.t_s - middle_s).argmin()), 0.4 * distance))

    def _likeliest(self, between: list[int], after: int) -> int:
        """Of the keys between two that differ, one beside the key at which a cut is likeliest: where the sizes of
        keys or the activity change most, both of which stay alike within a scene."""
        sizes = self.signals.index.size_bytes
        keys = [*between, after]
        anchors = self.signals.anchors
        signs = []
        for key in keys:
            previous = int(anchors[np.searchsorted(anchors, key) - 1])
            signs.append(abs(np.log(sizes[key] / max(1, sizes[previous]))) + self._activity_step(key))
        best = int(np.argmax(signs))
        return between[min(best, len(between) - 1)]

    def second_cut(self, key: int, distance: float) -> None:
        """Looks for a cut so soon after an irregular key that the encoder might not set another one."""
        if not self.signals.is_irregular[key]:
            return
        t_s, sizes = self.signals.t_s, self.signals.index.size_bytes
        for sample in candidates(self.signals, key, self.signals.next_key(key), 2.2, 0.45)[:1]:
            if t_s[sample] - t_s[key] < _MIN_KEY_INTERVAL_S and sizes[sample] > _SECOND_SHARE * sizes[key]:
                self.replaces(key, sample, distance)

    def interval_cuts(self, before: int, after: int, distance: float) -> bool:
        """Whether a cut between keys that are not neighbours was found, or is asked for, without the keys between."""
        keys = [int(a) for a in self.signals.anchors if before <= a < after and int(a) not in self.evidence.failed]
        suspects = [
            (sample, key)
            for key in keys
            for sample in candidates(self.signals, key, self.signals.next_key(key), 1.6, 0.2)[:1]
        ]
        suspects.sort(key=lambda suspect: -int(self.signals.index.size_bytes[suspect[0]]))
        for sample, key in suspects[:2]:
            verdict = self.replaces(key, sample, distance)
            if verdict is not False:
                return True
        return False

    def replaces(self, key: int, sample: int, distance: float) -> bool | None:
        """Whether `sample` replaces the picture of the key before it; None while that is asked for."""
        if not self.signals.can_patch:
            is_large = (
                self.signals.size_ratio[sample] > _UNSEEN_RATIO and self.signals.key_share[sample] > _UNSEEN_SHARE
            )
            if is_large:
                self.cuts.append(self.cut(sample, 0.8 * distance))
            return bool(is_large)
        run = Run((key, sample), is_patched=True)
        if run not in self.evidence.done and not self.is_final:
            self.wishes.append(run)
            return None
        replaced = self.evidence.across(run)
        if replaced is None or replaced.distance <= _REPLACED or replaced.area <= _REPLACED_AREA:
            return False
        self.cuts.append(self.cut(sample, max(distance, replaced.distance)))
        return True

    def inner_cuts(self, key: int, end: int, distance: float) -> bool:
        """Whether a sample within the GOP was found to replace the picture; asks for those not looked at."""
        ratio, share, tries = (1.2, 0.1, 3) if self.signals.has_short_gops else (1.5, 0.25, 2)
        if end < len(self.signals.index) and self.signals.is_irregular[end]:
            ratio, share, tries = 2.2, 0.45, 1  # violent motion put that key there and explains the difference
        inner = candidates(self.signals, key, end, ratio, share)[:tries]
        found = False
        for sample in inner:
            verdict = self.replaces(key, sample, distance)
            if verdict is None:
                return True  # judged again when it was looked at
            found |= verdict
        return found

    def key_cut(self, before: int, key: int, distance: float) -> bool:
        """Whether an irregular key begins a scene. In doubt (a small key among large samples), look at how much
        moves just before and after it: the encoder puts such keys into violent motion too."""
        if not self.signals.is_irregular[key]:
            return False
        if self.signals.size_ratio[key] >= _STRONG_KEY_RATIO:
            self.cuts.append(self.cut(key, distance))
            return True
        if not self.signals.can_patch:
            is_cut = self.signals.size_ratio[key] >= _UNSEEN_KEY_RATIO or distance > _UNSEEN_DISTANCE
            if is_cut:
                self.cuts.append(self.cut(key, 0.8 * distance))
            return bool(is_cut)
        tail = self.tail(before, key)
        if tail and tail not in self.evidence.done and not self.is_final:
            self.wishes.append(tail)
            return True
        onward = self.evidence.across(tail) if tail else None
        moves_before = onward.distance if onward else 0.0
        if moves_before < _MOVING_BEFORE and (onward is None or onward.area < _MOVING_AREA):
            self.cuts.append(self.cut(key, distance * (1 - moves_before)))
            return True
        return self._moves_change(key, distance)

    def _moves_change(self, key: int, distance: float) -> bool:
        """Whether the violent motion before a key ends with it, or goes on as a transition does."""
        head = self.head(key)
        if head and head not in self.evidence.done and not self.is_final:
            self.wishes.append(head)
            return True
        onward = self.evidence.across(head) if head else None
        if onward is None or _STILL_AFTER <= onward.distance <= _FADING_AFTER:
            return False
        self.cuts.append(self.cut(key, distance * 0.8, is_gradual=onward.distance > _FADING_AFTER))
        return True

    def tail(self, before: int, key: int) -> Run | None:
        references = [s for s in range(before + 1, key) if _is_step(self.signals, s)]
        return Run((before, *references[-_TAIL:]), is_patched=True) if references else None

    def head(self, key: int) -> Run | None:
        end = self.signals.next_key(key)
        references = [s for s in range(key + 1, end) if _is_step(self.signals, s)][:_HEAD]
        return Run((key, *references), is_patched=True) if references else None

    def transitions(self, before: int, after: int, distance: float, *, is_explained: bool) -> bool:
        """Whether dissolves or fades lie between two keys: each raises the sizes for its while.

        Where pictures can be patched, the samples of every bump are decoded on top of the key before: those of a
        dissolve bring in the new scene, those of a motion or an exposure change leave the old one. Elsewhere the
        clearest bumps are believed, since the keys differ.
        """
        start_s, end_s = float(self.signals.t_s[before]), float(self.signals.t_s[after])
        bumps = self.signals.bumps_between(start_s, end_s, _MIN_BUMP)
        if not bumps:
            return False
        steps = [_steps_within(self.signals, before, after, bump) for bump in bumps]
        run = transition_run(self.signals, before, after)
        if self.signals.can_patch and len(run.samples) > 1:
            is_done = run in self.evidence.done
            if not is_done and not self.is_final:
                self.wishes.append(run)
                return True
            if is_done and (self._replacing(run, zip(bumps, steps, strict=True), distance) or is_explained):
                return True
            if is_done:  # a slow blend is coded in many small steps: what else would make the keys differ?
                bumps = [bump for bump in bumps if bump.rise >= _BUMP_BESIDE_CUT]
                if not bumps:
                    return False
        clearest = max(bump.rise for bump in bumps)
        floor = max(_BUMP_SHARE * clearest, _BUMP_BESIDE_CUT if is_explained else _MIN_BUMP)
        taken = [
            bump
            for bump in bumps
            if bump.rise >= floor and (not is_explained or bump.end_s - bump.start_s >= _BUMP_BESIDE_CUT_S)
        ]
        self.cuts += [self.gradual(bump, distance * 0.8) for bump in taken]
        return bool(taken)

    def _replacing(self, run: Run, bumps: Iterable[tuple[Bump, list[int]]], distance: float) -> bool:
        """Whether the samples of any bump replaced the picture that stood before it."""
        seen, found = self.evidence.exact.get(run.key), False
        for bump, inside in bumps:
            shown = self.evidence.at(run, inside[-1]) if inside else None
            if seen is None or shown is None:
                continue
            replaced = change(seen, shown)
            if replaced.distance > _REPLACED and replaced.area > _REPLACED_AREA:
                self.cuts.append(self.gradual(bump, max(0.5, distance * 0.9)))
                found = True
            seen = shown
        return found

    def gradual(self, bump: Bump, score: float) -> Cut:
        """Placed early in the bump: its start is sharper than its end."""
        middle_s = bump.start_s + min(_INTO_BUMP_S, _INTO_BUMP_SHARE * (bump.end_s - bump.start_s))
        sample = int(np.abs(self.signals.t_s - middle_s).argmin())
        return self.cut(sample, score, is_gradual=True)

    def told_by_sizes(self, before: int, after: int, distance: float) -> bool:
        """Whether sizes alone say what came between two keys that differ: just one sample or stretch stands out."""
        keys = [int(a) for a in self.signals.anchors if before <= a < after]
        outliers = [
            sample
            for key in keys
            for sample in candidates(self.signals, key, self.signals.next_key(key), *_OUTLIER)
            if sample < after
        ]
        t_s = self.signals.t_s
        bumps = self.signals.bumps_between(float(t_s[before]), float(t_s[after]), _MIN_SHORT_BUMP)
        bumps = [b for b in bumps if not any(abs(t_s[sample] - b.start_s) < _SAME_EVENT_S for sample in outliers)]
        outliers = [s for s in outliers if not any(b.start_s <= t_s[s] < b.end_s for b in bumps)]
        if len(outliers) + len(bumps) != 1:
            return False
        self.cuts.append(self.cut(outliers[0], distance) if outliers else self.gradual(bumps[0], distance * 0.8))
        return True

    def tail_of_stream(self, key: int) -> None:
        """After the last key there is no later picture to compare: only the strongest sample is tried."""
        if watching(self.signals, key, len(self.signals.index)) in self.evidence.done:
            return
        if self.signals.can_patch:
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
            if change.distance <= _STEP or change.area <= _STEP_AREA:
                continue
            later = next((s for s in seen[position + 1 :] if t_s[s] >= t_s[after] + _LASTING_S), seen[-1])
            if self.evidence.change(before, later).distance > _STEP:
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
            if change.area > _REPLACED_AREA and (
                self._is_still_gop(*pair)
                or self._activity_step(pair[1]) > _ACTIVITY_STEP
                or (self.signals.has_short_gops and self._stands_out(pairs, position))
            ):
                self.cuts.append(self.cut(pair[1], change.distance * 0.9))

    def _is_still_gop(self, key: int, end: int) -> bool:
        """Whether too few bytes lie between two keys for the picture to have changed before the second."""
        sizes = self.signals.index.size_bytes
        return bool(sizes[key + 1 : end].sum() < _STILL_SHARE * sizes[key])

    def _activity_step(self, key: int) -> float:
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


def watching(signals: Signals, before: int, after: int) -> Run:
    """Every sample from a key up to another that decoding can step on: certain, and dear unless pictures are small."""
    inside = range(before + 1, after)
    return Run((before, *(s for s in inside if signals.is_reference[s] and signals.index.is_readable[s])))


def worth_watching(signals: Signals, evidence: Evidence) -> Iterator[Run]:
    """What is cheap to watch and may hide a cut: between neighbouring keys that differ, and after the last one."""
    count, facts = len(signals.index), signals.index.facts
    if facts.width_px * facts.height_px > _SMALL_PIXELS:
        return
    for before, after in itertools.pairwise([*whole_anchors(signals, evidence), count]):
        if before not in evidence.exact or (after < count and after not in evidence.exact):
            continue
        if after < count and evidence.change(before, after).distance < _STEP:
            continue
        floor = _LAST_HINT if facts.codec in _HIDING_CODECS else _LAST_CLEAR_HINT
        if after == count and not candidates(signals, before, after, *floor):
            continue
        is_told = after < count and signals.is_irregular[after] and signals.size_ratio[after] >= _STRONG_KEY_RATIO
        if is_told and not candidates(signals, before, after, 1.5, 0.25):
            continue
        run = watching(signals, before, after)
        size_bytes = int(signals.index.size_bytes[list(run.samples)].sum())
        pixels = len(run.samples) * facts.width_px * facts.height_px
        if len(run.samples) > 1 and size_bytes <= _CHEAP_BYTES and pixels <= _CHEAP_PIXELS:
            yield run


def whole_anchors(signals: Signals, evidence: Evidence) -> list[int]:
    """The anchors that were not found to be recovery points, whose picture lacks what was coded before them."""
    return [anchor for anchor in signals.anchors.tolist() if anchor not in evidence.not_intra]


def transition_run(signals: Signals, before: int, after: int) -> Run:
    """The key before and, patched on top, the largest samples of each bump up to the key after."""
    bumps = signals.bumps_between(float(signals.t_s[before]), float(signals.t_s[after]), _MIN_BUMP)
    steps = [sample for bump in bumps for sample in _steps_within(signals, before, after, bump)]
    return Run((before, *dict.fromkeys(steps)), is_patched=bool(steps))


def _steps_within(signals: Signals, before: int, after: int, bump: Bump) -> list[int]:
    t_s = signals.t_s[before + 1 : after]
    inside = before + 1 + np.flatnonzero((t_s >= bump.start_s - 0.15) & (t_s < bump.end_s + 0.1))
    steps = [int(sample) for sample in inside if _is_step(signals, int(sample))]
    largest = sorted(steps, key=lambda sample: -int(signals.index.size_bytes[sample]))
    return sorted(largest[:_MAX_BUMP_STEPS])


def _is_step(signals: Signals, sample: int) -> bool:
    index = signals.index
    return bool(signals.is_reference[sample] and index.is_readable[sample] and not index.is_key[sample])


def size_events(signals: Signals) -> list[float]:
    """The instants at which sizes hint at a cut or transition between keys, in seconds."""
    events = [
        float(signals.t_s[sample])
        for key in signals.anchors.tolist()
        for sample in candidates(signals, key, signals.next_key(key), *_HINT)
    ]
    floor = _MIN_SHORT_BUMP if signals.has_short_gops else _MIN_BUMP
    events += [bump.start_s for bump in signals.bumps if bump.rise >= floor]
    return sorted(events)


def merged(cuts: list[Cut]) -> tuple[Cut, ...]:
    """In time order; of several within 0.4 s the clearest."""
    kept: list[Cut] = []
    for cut in sorted(cuts, key=lambda cut: cut.t_s):
        near_s = _SAME_TRANSITION_S if kept and (kept[-1].is_gradual or cut.is_gradual) else _SAME_CUT_S
        if kept and cut.t_s - kept[-1].t_s < near_s:
            kept[-1] = max(kept[-1], cut, key=lambda cut: cut.score)
        else:
            kept.append(cut)
    return tuple(kept)
