"""What to decode next: signals, evidence so far and a budget -> runs, or nothing when enough was seen. Pure.

Cost follows the compressed bytes that are decoded, so bytes are what is budgeted; the number of frames is
bounded too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.video.cuts import find_cuts
from pipeline.video.evidence import Evidence, Look, Run, Wish
from pipeline.video.glanced import find_glanced_cuts, is_dense, shot_keys
from pipeline.video.hints import size_events
from pipeline.video.motion import find_motion, is_quiet_coded
from pipeline.video.signals import Signals
from pipeline.video.source import READ_GAP_BYTES, ByteRange, coalesce
from pipeline.video.verdicts import is_weak_key, look_before
from pipeline.video.watching import watching, whole_anchors, worth_watching

_BYTES_PER_MINUTE = 8.5e6
_MIN_BYTES = 1.5e6
_MAX_BYTES = 64e6
_FILE_SHARE = 0.03
_CHEAPER_BYTES = {"dvvideo": 8, "prores": 3, "mjpeg": 2}
"""Without arithmetic coding a MB takes 10, 27 and 50 ms here instead of 100."""
_FRAME_SHARE = 0.048
_MIN_FRAMES = 16
_MAX_FRAMES = 2000
_CHEAP_PIXELS, _CHEAP_KEYS_PIXELS, _CHEAP_KEYS_BYTES = 30e6, 6e6, 500_000
_KEYS_PER_MINUTE = 30
_SWEEP_S = 3.6
_QUIET_SWEEP_S = 5.0
_SPARSE_GOP_S = 20.0
_SPARSE_FRAMES = 400
_SPARSE_BYTES = 5_000_000
_MOTION_PER_ROUND = 12
_RANGES_PER_MINUTE, _MIN_RANGES, _MAX_RANGES = 21, 21, 1200
_READ_SHARE, _MIN_READ_BYTES = 0.19, 3_000_000
_LONG_READ_SHARE, _LONG_MIN_READ_BYTES = 0.108, 900_000
_ANALYSIS_SHARE, _KEYS_SHARE = 0.85, 0.8
_MAX_GAP_BYTES = 1_600_000
_KEY_GAP_GOPS, _GLANCE_GAP_GOPS, _MEAN_RANGES = 1.2, 0.7, 3.5
_KEYS_SHOWN_PER_MINUTE = 5
_MARGIN_S = 12.5
_LIKE_SIZES = 0.15
_READ_WHOLE_BYTES = 900_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be decoded (compressed bytes, frames) and read (ranges, bytes) for analysis in all."""

    decoded_bytes: int
    frames: int
    ranges: int = _MAX_RANGES
    read_bytes: int = 1 << 60


def budget(signals: Signals, keyframes: int, *, effort: float = 1.0) -> Budget:
    """The budget for one video, of which about `keyframes` frames will be decoded again as final images.

    `effort` multiplies it.
    """
    stream_bytes = int(signals.index.size_bytes.sum())
    per_length = _BYTES_PER_MINUTE * signals.index.duration_s / 60
    decoded_bytes = min(_MAX_BYTES, max(_MIN_BYTES, per_length, _FILE_SHARE * stream_bytes))
    frames = max(_MIN_FRAMES, _FRAME_SHARE * len(signals.index) - keyframes, cheap_frames(signals))
    if sparse_gops(signals):
        frames += _SPARSE_FRAMES
    ranges = int(np.clip(_RANGES_PER_MINUTE * signals.index.duration_s / 60, _MIN_RANGES, _MAX_RANGES))
    if signals.index.payloads or stream_bytes < _READ_WHOLE_BYTES:
        ranges = _MAX_RANGES
    read_bytes = most_bytes_read(signals) * (1.0 if signals.has_short_gops else _ANALYSIS_SHARE)
    decoded_bytes *= _CHEAPER_BYTES.get(signals.index.facts.codec, 1)
    return Budget(
        decoded_bytes=int(decoded_bytes * effort),
        frames=int(min(_MAX_FRAMES, frames) * effort),
        ranges=int(ranges * max(1.0, effort)),
        read_bytes=int(read_bytes * max(1.0, effort)),
    )


def most_bytes_read(signals: Signals) -> float:
    """How many bytes may be read for all, analysis and images: less where GOPs are long."""
    stream_bytes = int(signals.index.size_bytes.sum())
    if signals.has_short_gops or sparse_gops(signals):
        return max(_MIN_READ_BYTES, _READ_SHARE * stream_bytes)
    return max(_LONG_MIN_READ_BYTES, _LONG_READ_SHARE * stream_bytes)


def cheap_frames(signals: Signals) -> float:
    """How many frames cost little because they are small: all of a short clip of 320x180."""
    facts = signals.index.facts
    return _CHEAP_PIXELS / max(1, facts.width_px * facts.height_px)


def next_runs(signals: Signals, evidence: Evidence, left: Budget) -> list[Wish]:
    """The runs to decode next, the most telling first, within what is `left`; empty means done."""
    if is_dense(signals):
        return _glances(signals, evidence, left)
    if not evidence.done:
        share = 1.0 if signals.has_short_gops else _KEYS_SHARE
        return affordable(signals, first_look(signals), replace(left, read_bytes=int(share * left.read_bytes)))
    cuts = find_cuts(signals, evidence)
    wishes: list[Wish] = [run for run in cuts.wishes if run not in evidence.done]
    watched = [*worth_watching(signals, evidence), *_refreshed(signals, evidence, left)]
    wishes = wishes or [run for run in watched if run not in evidence.done]
    wishes = wishes or list(find_motion(signals, evidence, cuts.cuts).wishes[:_MOTION_PER_ROUND])
    read = {sample for run in evidence.done if isinstance(run, Run) for sample in run.samples}
    return affordable(signals, (run for run in wishes if run not in evidence.done), left, read)


def _glances(signals: Signals, evidence: Evidence, left: Budget) -> list[Wish]:
    """Glances wherever sizes look like a cut, then the keys of the longest shots: those become images."""
    found = find_glanced_cuts(signals, evidence)
    kept = int(_KEYS_SHOWN_PER_MINUTE * max(1.0, signals.index.duration_s / 60))
    looking = replace(left, ranges=left.ranges - kept) if left.ranges < _MAX_RANGES else left
    looks = [wish for wish in found.wishes if wish not in evidence.done] if not evidence.done else []
    if chosen := affordable(signals, looks, looking):
        return chosen
    keys = [wish for wish in shot_keys(signals, evidence, found.cuts, kept) if wish not in evidence.done]
    return affordable(signals, keys, left)


def _refreshed(signals: Signals, evidence: Evidence, left: Budget) -> Iterator[Run]:
    """Intra refresh: what follows the few true keys, one by one, as far as the budget goes."""
    if not evidence.not_intra:
        return
    index = signals.index
    for before, after in itertools.pairwise([*whole_anchors(signals, evidence), len(index)]):
        if any(before < anchor < after for anchor in evidence.not_intra):
            samples = np.array(watching(signals, before, after).samples, np.int64)
            is_affordable = np.cumsum(index.size_bytes[samples]) <= left.decoded_bytes
            if is_affordable[:1].all() and left.frames > 1:
                yield Run(tuple(samples[is_affordable][: left.frames].tolist()))


def affordable(signals: Signals, runs: Iterable[Wish], left: Budget, read: Collection[int] = ()) -> list[Wish]:
    """As many of `runs`, in order, as the budget holds; the samples `read` need no range any more."""
    index, gap_bytes = signals.index, read_gap_bytes(signals, left)
    taken: list[Wish] = []
    bytes_left, frames_left, places = left.decoded_bytes, left.frames, list[ByteRange]()
    for run in dict.fromkeys(runs):
        lengths = {sample: int(index.size_bytes[sample]) for sample in run.samples}
        if isinstance(run, Look):
            lengths[run.sample] = min(run.limit_bytes, lengths[run.sample])
        run_bytes = sum(lengths.values()) if isinstance(run, Run) else lengths[run.sample]
        more = [
            ByteRange(int(index.offset_bytes[sample]), length)
            for sample, length in lengths.items()
            if sample not in read and index.offset_bytes[sample] >= 0
        ]
        merged = coalesce([*places, *more], gap_bytes)
        is_readable = len(merged) <= left.ranges and sum(part.length_bytes for part in merged) <= left.read_bytes
        if run_bytes <= bytes_left and len(run.samples) <= frames_left and (is_readable or not more):
            taken.append(run)
            bytes_left -= run_bytes
            frames_left -= len(run.samples)
            places = merged
    return taken


def read_gap_bytes(signals: Signals, left: Budget) -> int:
    """How far apart samples may lie to be read in one range. Of short GOPs, whose keys lie far apart, so far as
    bytes are left for each range that is left."""
    if not signals.has_short_gops or len(signals.anchors) < 2:
        return READ_GAP_BYTES
    usual_bytes = float(np.median(np.diff(signals.index.offset_bytes[signals.anchors])))
    if is_dense(signals):
        gap_bytes = _GLANCE_GAP_GOPS * usual_bytes
    else:
        gap_bytes = min(_KEY_GAP_GOPS * usual_bytes, _MEAN_RANGES * left.read_bytes / max(1, left.ranges))
    return int(np.clip(gap_bytes, READ_GAP_BYTES, _MAX_GAP_BYTES))


def first_look(signals: Signals) -> list[Wish]:
    """Keys all over the video, those around the likely cuts, and the samples that may be cuts themselves.

    Ordered so that any beginning of the list is spread over the whole video.
    """
    anchors = signals.anchors.tolist()
    if not anchors:
        return []
    wanted = set(anchors) if _are_cheap(signals, anchors) else _sweep(signals, anchors)
    for position, anchor in enumerate(anchors):
        if signals.is_irregular[anchor]:
            wanted.update(anchors[max(0, position - 1) : position + 1])
    return [
        wish
        for sample in _spread(sorted(wanted), is_last_early=not signals.has_short_gops)
        for wish in _with_look(signals, sample)
    ] + _sparse(signals)


def _with_look(signals: Signals, key: int) -> list[Wish]:
    """A key, and where it may stand in violent motion a look at what lies just before it: one range for both."""
    look = look_before(signals, key) if signals.can_glance and is_weak_key(signals, key) else None
    return [Run((key,)), look] if look else [Run((key,))]


def _are_cheap(signals: Signals, anchors: list[int]) -> bool:
    """Whether all keys together cost little: small pictures, few bytes."""
    index = signals.index
    pixels = len(anchors) * index.facts.width_px * index.facts.height_px
    return pixels <= _CHEAP_KEYS_PIXELS and int(index.size_bytes[anchors].sum()) <= _CHEAP_KEYS_BYTES


def _are_alike(signals: Signals, key: int, other: int) -> bool:
    """Whether two keys are of about the same size, as those of one scene are."""
    sizes = signals.index.size_bytes
    return bool(abs(np.log(max(1, sizes[key]) / max(1, sizes[other]))) < _LIKE_SIZES)


def _sweep(signals: Signals, anchors: list[int]) -> set[int]:
    """Long GOPs: the keys before and after anything that sizes hint at, and one in 12.5 s. Short ones: a key about
    every 3.6 s, or 5 s where nothing seems to move, and between any two hints."""
    t_s, events = signals.t_s, np.array(size_events(signals))
    minutes = max(signals.index.duration_s, 20.0) / 60
    is_sparse = not signals.has_short_gops and len(anchors) <= _KEYS_PER_MINUTE * minutes
    wanted, last = {anchors[0], anchors[-1]}, anchors[0]
    for previous, anchor, following in zip(anchors, anchors[1:], [*anchors[2:], None], strict=False):
        gap_s = t_s[anchor] - t_s[last]
        if is_sparse:
            is_quiet = _is_uneventful(signals, previous, anchor, events) and (
                following is None or _is_uneventful(signals, anchor, following, events)
            )
            is_wanted = not is_quiet or gap_s >= _MARGIN_S
        else:
            step_s = _QUIET_SWEEP_S if is_quiet_coded(signals, t_s[last], t_s[anchor]) else _SWEEP_S
            is_wanted = gap_s >= step_s - 0.05 or _parts_hints(events, t_s, last, anchor, following)
        if is_wanted:
            wanted.add(anchor)
            last = anchor
    return wanted


def _is_uneventful(signals: Signals, before: int, after: int, events: NDArray[np.float64]) -> bool:
    """Whether the sizes say that nothing happens between two keys."""
    inside = (events > signals.t_s[before]) & (events < signals.t_s[after])
    return not inside.any() and not signals.is_irregular[after] and _are_alike(signals, before, after)


def _parts_hints(
    events: NDArray[np.float64], t_s: NDArray[np.float64], last: int, anchor: int, following: int | None
) -> bool:
    """Whether a key stands between a hint since the last key taken and another before the next one."""
    if following is None:
        return False
    since = ((events > t_s[last]) & (events <= t_s[anchor])).sum()
    until = ((events > t_s[anchor]) & (events <= t_s[following])).sum()
    return bool(since and until)


def _spread(samples: list[int], *, is_last_early: bool) -> list[int]:
    """The same samples, the first first, then the middles of ever smaller gaps; the last is second if it shall be
    `is_last_early`: after it nothing more can be compared."""
    count = len(samples)
    if count < 3:
        return samples
    order = np.argsort([_reversed_bits(position) for position in range(count)], kind="stable").tolist()
    if is_last_early:
        order = [0, count - 1, *(position for position in order if 0 < position < count - 1)]
    return [samples[position] for position in order]


def _reversed_bits(number: int) -> int:
    return int(f"{number:020b}"[::-1], 2)


def _sparse(signals: Signals) -> list[Run]:
    """GOPs too long to be judged by their key: decoded from the key on, as far as the budget goes."""
    index = signals.index
    runs = []
    for key, end in sparse_gops(signals):
        usable = np.array([s for s in range(key, end) if signals.is_reference[s] and index.is_readable[s]], np.int64)
        is_affordable = np.cumsum(index.size_bytes[usable]) <= _SPARSE_BYTES
        runs.append(Run(tuple(usable[is_affordable][:_SPARSE_FRAMES].tolist())))
    return [run for run in runs if len(run.samples) > 1]


def sparse_gops(signals: Signals) -> list[tuple[int, int]]:
    """The half-open sample ranges of GOPs of which more than 20 s can be read."""
    ends = np.append(signals.anchors[1:], len(signals.index))[: len(signals.anchors)].tolist()
    gops = zip(signals.anchors.tolist(), ends, strict=True)
    times_s = np.where(signals.index.is_readable, signals.t_s, -np.inf)
    return [(key, end) for key, end in gops if times_s[key:end].max() - signals.t_s[key] > _SPARSE_GOP_S]
