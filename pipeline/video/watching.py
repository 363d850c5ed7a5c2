"""Decoding all of a stretch where that is cheap: certain, and dear unless pictures are small. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pipeline.video.evidence import Evidence, Run
from pipeline.video.hints import candidates
from pipeline.video.signals import Signals

STEP = 0.3
"""From one frame to the next, scenes of small clips differ by more, one scene by less than 0.1."""
_SMALL_PIXELS, _CHEAP_PIXELS, _CHEAP_BYTES = 500_000, 15e6, 200_000
_LAST_HINT, _LAST_CLEAR_HINT = (1.0, 0.05), (1.5, 0.2)
_STRONG_KEY_RATIO = 2.4
_HIDING_CODECS = frozenset(("vp8", "vp9", "av1"))
"""Their encoders smear a cut's bytes over several samples, for want of bits or by alternate references."""


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
        if after < count and evidence.change(before, after).distance < STEP:
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
