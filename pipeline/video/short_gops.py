"""Cuts where keys stand in a short, regular beat and say nothing. Pure."""

from __future__ import annotations

import numpy as np

from pipeline.video.evidence import Run
from pipeline.video.findings import Cut
from pipeline.video.hints import MIN_SHORT_BUMP, candidates
from pipeline.video.judging import DIFFERENT, REPLACED_AREA, Judge
from pipeline.video.signals import Bump

_INTO_BUMP_S, _INTO_BUMP_SHARE = 0.3, 0.4
_OUTLIER = (3.0, 0.45)
_SAME_EVENT_S = 0.25
_FEW_KEYS = 3
_UNREFINED_RATIO = 1.7
_SHORT_DIFFERENT = 0.6


class ShortGops(Judge):
    def pair(self, before: int, after: int) -> None:
        distance = self.evidence.change(before, after).distance
        if distance < DIFFERENT or self.was_watched(before, after, distance):
            return
        if self.told_by_sizes(before, after, distance):
            return
        if between := self.between(before, after):
            if self.interval_cuts(before, after, distance):
                return
            wanted = between if len(between) <= _FEW_KEYS else [self.likeliest(between, after)]
            self.bisections += [(-distance, Run((key,))) for key in wanted]
            if self.is_final:
                self.unrefined(before, after, distance)
            return
        self.second_cut(before, distance)
        if self.key_cut(after, distance):
            return
        if self.is_final and distance > _SHORT_DIFFERENT:
            self.unrefined(before, after, distance)
        elif not self.inner_cuts(before, after, distance):
            self.unexplained.add((before, after))

    def unrefined(self, before: int, after: int, distance: float) -> None:
        """Keys some seconds apart that differ, and nothing more may be read: the sample that stands out most."""
        if self.evidence.change(before, after).area < REPLACED_AREA:
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
        bumps = self.signals.bumps_between(float(t_s[before]), float(t_s[after]), MIN_SHORT_BUMP)
        bumps = [b for b in bumps if not any(abs(t_s[sample] - b.start_s) < _SAME_EVENT_S for sample in outliers)]
        outliers = [s for s in outliers if not any(b.start_s <= t_s[s] < b.end_s for b in bumps)]
        if len(outliers) + len(bumps) != 1:
            return False
        self.cuts.append(self.cut(outliers[0], distance) if outliers else self.gradual(bumps[0], distance * 0.8))
        return True
