"""What to decode next: signals, evidence so far and a budget -> runs, or nothing when enough was seen. Pure.

Cost follows the compressed bytes that are decoded, so bytes are what is budgeted; the number of frames is
bounded too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.video.cuts import candidates, find_cuts
from pipeline.video.evidence import Evidence, Run
from pipeline.video.motion import find_motion, is_quiet_coded
from pipeline.video.signals import Signals

_BYTES_PER_MINUTE = 8.5e6
_MIN_BYTES = 1.5e6
_MAX_BYTES = 64e6
_FILE_SHARE = 0.03
_FRAME_SHARE = 0.042
_MIN_FRAMES = 16
_MAX_FRAMES = 2000
_KEYS_PER_MINUTE = 30
_SWEEP_S = 3.0
_QUIET_SWEEP_S = 4.0
_STRONG_RATIO, _STRONG_SHARE = 2.2, 0.45
_SPARSE_GOP_S = 20.0
_SPARSE_FRAMES = 400
_SPARSE_BYTES = 5_000_000
_MOTION_PER_ROUND = 12


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be decoded for analysis in all: compressed bytes and frames."""

    decoded_bytes: int
    frames: int


def budget(signals: Signals, keyframes: int, *, effort: float = 1.0) -> Budget:
    """The budget for one video, of which about `keyframes` frames will be decoded again as final images.

    `effort` multiplies it.
    """
    stream_bytes = int(signals.index.size_bytes.sum())
    per_length = _BYTES_PER_MINUTE * signals.index.duration_s / 60
    decoded_bytes = min(_MAX_BYTES, max(_MIN_BYTES, per_length, _FILE_SHARE * stream_bytes))
    frames = max(_MIN_FRAMES, _FRAME_SHARE * len(signals.index) - keyframes)
    if sparse_gops(signals):
        frames += _SPARSE_FRAMES
    return Budget(int(decoded_bytes * effort), int(min(_MAX_FRAMES, frames) * effort))


def next_runs(signals: Signals, evidence: Evidence, left: Budget) -> list[Run]:
    """The runs to decode next, the most telling first, within what is `left`; empty means done."""
    if not evidence.done:
        return affordable(signals, first_look(signals), left)
    cuts = find_cuts(signals, evidence)
    wishes = list(cuts.wishes) or list(find_motion(signals, evidence, cuts.cuts).wishes[:_MOTION_PER_ROUND])
    return affordable(signals, (run for run in wishes if run not in evidence.done), left)


def affordable(signals: Signals, runs: Iterable[Run], left: Budget) -> list[Run]:
    """As many of `runs`, in order, as the budget holds."""
    taken: list[Run] = []
    bytes_left, frames_left = left.decoded_bytes, left.frames
    for run in dict.fromkeys(runs):
        run_bytes = int(signals.index.size_bytes[list(run.samples)].sum())
        if run_bytes <= bytes_left and len(run.samples) <= frames_left:
            taken.append(run)
            bytes_left -= run_bytes
            frames_left -= len(run.samples)
    return taken


def first_look(signals: Signals) -> list[Run]:
    """Keys all over the video, those around the likely cuts, and the samples that may be cuts themselves.

    Ordered so that any beginning of the list is spread over the whole video.
    """
    anchors = signals.anchors.tolist()
    if not anchors:
        return []
    suspects = _suspects(signals) if signals.has_short_gops and signals.can_patch else {}
    wanted = _sweep(signals, suspects)
    for position, anchor in enumerate(anchors):
        if signals.is_irregular[anchor]:
            wanted.update(anchors[max(0, position - 1) : position + 1])
    runs = [
        Run((sample, suspects[sample]), is_patched=True) if sample in suspects else Run((sample,))
        for sample in _spread(sorted(wanted))
    ]
    return runs + _sparse(signals)


def _sweep(signals: Signals, suspects: Collection[int]) -> set[int]:
    """The suspects, and all keys where they are few; else one about every 3 s, or 4 s where nothing seems to move."""
    anchors, t_s = signals.anchors.tolist(), signals.t_s
    minutes = max(signals.index.duration_s, 20.0) / 60
    if not signals.has_short_gops and len(anchors) <= _KEYS_PER_MINUTE * minutes:
        return set(anchors)
    wanted = {anchors[0], anchors[-1], *suspects}
    last = anchors[0]
    for anchor in anchors[1:]:
        if anchor in suspects:
            last = anchor
            continue
        gap_s = t_s[anchor] - t_s[last]
        step_s = _QUIET_SWEEP_S if is_quiet_coded(signals, t_s[last], t_s[anchor]) else _SWEEP_S
        if gap_s >= step_s - 0.05:
            wanted.add(anchor)
            last = anchor
    return wanted


def _suspects(signals: Signals) -> dict[int, int]:
    """By key: the sample of its GOP that stands out most, where one does."""
    found = {}
    for key in signals.anchors.tolist():
        standing_out = candidates(signals, key, signals.next_key(key), _STRONG_RATIO, _STRONG_SHARE)
        if standing_out:
            found[key] = standing_out[0]
    return found


def _spread(samples: list[int]) -> list[int]:
    """The same samples, first and last first, then the middles of ever smaller gaps."""
    count = len(samples)
    if count < 3:
        return samples
    order = np.argsort([_reversed_bits(position) for position in range(count)], kind="stable")
    return [samples[position] for position in order]


def _reversed_bits(number: int) -> int:
    return int(f"{number:020b}"[::-1], 2)


def _sparse(signals: Signals) -> list[Run]:
    """GOPs too long to be judged by their key: decoded from the key on, as far as the budget goes."""
    index = signals.index
    runs = []
    for key, end in sparse_gops(signals):
        usable = np.array([s for s in range(key, end) if signals.is_reference[s] and index.is_readable[s]])
        is_affordable = np.cumsum(index.size_bytes[usable]) <= _SPARSE_BYTES
        runs.append(Run(tuple(usable[is_affordable][:_SPARSE_FRAMES].tolist())))
    return [run for run in runs if len(run.samples) > 1]


def sparse_gops(signals: Signals) -> list[tuple[int, int]]:
    """The half-open sample ranges of GOPs of which more than 20 s can be read."""
    ends = np.append(signals.anchors[1:], len(signals.index)).tolist()
    gops = zip(signals.anchors.tolist(), ends, strict=True)
    times_s = np.where(signals.index.is_readable, signals.t_s, -np.inf)
    return [(key, end) for key, end in gops if times_s[key:end].max() - signals.t_s[key] > _SPARSE_GOP_S]
