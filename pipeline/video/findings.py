"""What a search for cuts gives. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.video.evidence import Wish

_SAME_CUT_S, _SAME_TRANSITION_S = 0.4, 0.9


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


def merged(cuts: list[Cut]) -> tuple[Cut, ...]:
    """In time order; of several within 0.4 s, or 0.9 s of a gradual one, the clearest."""
    kept: list[Cut] = []
    for cut in sorted(cuts, key=lambda cut: cut.t_s):
        near_s = _SAME_TRANSITION_S if kept and (kept[-1].is_gradual or cut.is_gradual) else _SAME_CUT_S
        if kept and cut.t_s - kept[-1].t_s < near_s:
            best = max(kept[-1], cut, key=lambda cut: (cut.is_gradual, cut.score))
            kept[-1] = replace(best, is_gradual=kept[-1].is_gradual or cut.is_gradual)
        else:
            kept.append(cut)
    return tuple(kept)
