"""Where one scene ends and another begins, judged from sizes and a few decoded pictures. Pure.

Every judgement that lacks a picture says which run it wishes for; `plan` decides what is affordable.
The constants were set on public clips cut together with known cuts (H.264 and HEVC, long and short GOPs).
"""

from __future__ import annotations

import itertools

from pipeline.video.evidence import Evidence
from pipeline.video.findings import CutFindings, merged
from pipeline.video.judging import Judge
from pipeline.video.long_gops import LongGops
from pipeline.video.short_gops import ShortGops
from pipeline.video.signals import Signals


def find_cuts(signals: Signals, evidence: Evidence, *, is_final: bool = False) -> CutFindings:
    """The cuts that the evidence supports so far, and the runs that would settle the doubtful places.

    `is_final` says that no wish will be granted any more: what is doubtful is judged as it stands.
    """
    style = ShortGops if signals.has_short_gops else LongGops
    judge: Judge = style(signals, evidence, is_final=is_final)
    seen = judge.seen
    for before, after in itertools.pairwise(seen):
        judge.pair(before, after)
    if seen:
        judge.tail_of_stream(seen[-1])
    judge.jumps(seen)
    judge.sequences()
    farthest_first = [run for _, run in sorted(judge.bisections, key=lambda bisection: bisection[0])]
    return CutFindings(merged(judge.cuts), tuple(dict.fromkeys([*judge.wishes, *farthest_first])))
