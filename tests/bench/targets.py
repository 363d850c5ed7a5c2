"""What was promised, group by group, and whether a run kept them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench.baselines import TRANSNET
from tests.bench.results import OURS, ClipResult, Pool, table
from tests.bench.scoring import Score, ratio

_TIMES_CHEAPER = {"web": 100, "phone": 25, "hevc": 60}
_ONSETS = {"web": 0.85, "phone": 0.75, "hevc": 0.85}
_RECALLS = (("hard cuts", "hard", 0.9), ("dissolves", "dissolves", 0.75), ("fades", "fades", 0.75))
_DETECTORS = ("ContentDetector", "AdaptiveDetector")
_NEAR_TRANSNET = 0.03
_RANGES_A_MINUTE = 24
_FREE_BYTES = 1_000_000
_BYTES_SHARE = {"web": 0.12, "phone": 0.2, "hevc": 0.12}
_LARGER_AT_MOST = 1.6


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise for one group of one set: in words what is asked for and what was found."""

    promise: str
    label: str
    group: str
    asked: str
    found: str
    holds: bool


def verdicts(pools: Sequence[Pool]) -> list[Verdict]:
    """Every promise that a run says something about."""
    return [one for pool in pools for check in _CHECKS for one in check(pool)] + list(_sizes(pools))


def targets_table(pools: Sequence[Pool]) -> str:
    rows = [["promise", "set", "group", "asked", "found", "holds"]]
    for one in sorted(verdicts(pools), key=lambda one: one.promise):
        holds = "yes" if one.holds else "**no**"
        rows.append([one.promise, one.label, one.group, one.asked, one.found, holds])
    return table(rows)


def _style(pool: Pool) -> str:
    return pool.group.split()[0]


def _cost(pool: Pool) -> Iterator[Verdict]:
    found, asked = pool.cpu_ratio(), _TIMES_CHEAPER.get(_style(pool))
    if found and asked:
        words = f"{found:.0f} times in the median of {len(pool.timed(_DETECTORS[0]))}"
        yield Verdict("1 CPU below ContentDetector", pool.label, pool.group, f"≥ {asked} times", words, found >= asked)


def _cuts(pool: Pool) -> Iterator[Verdict]:
    found = pool.score(OURS)
    best = [(_f1_on_the_same(pool, name), name) for name in _DETECTORS if pool.of(name)]
    if best:
        (ours, theirs), name = max(best, key=lambda one: one[0][1])
        on = f"{len(pool.of(name))} clips"
        yield Verdict(
            "2 cut F1", pool.label, pool.group, f"≥ {theirs:.3f} ({name}, {on})", f"{ours:.3f}", ours >= theirs
        )
    if pool.of(TRANSNET):
        ours, theirs = _f1_on_the_same(pool, TRANSNET)
        asked = f"goal: ≥ {theirs:.3f} − 0.03 ({len(pool.of(TRANSNET))} clips)"
        is_near = ours >= theirs - _NEAR_TRANSNET
        yield Verdict("2 cut F1 near TransNetV2", pool.label, pool.group, asked, f"{ours:.3f}", is_near)
    for words, part, least in _RECALLS:
        got, whole = getattr(found, part), getattr(found, f"{part}_of")
        if whole:
            holds = got >= least * whole
            yield Verdict(f"2 recall of {words}", pool.label, pool.group, f"≥ {least}", _of(got, whole), holds)
    lights = found.flashes_of + found.exposures_of
    if lights:
        wrong = found.at_flashes + found.at_exposures
        words = f"{found.at_flashes}/{found.flashes_of} and {found.at_exposures}/{found.exposures_of}"
        yield Verdict("2 no cut at flash, exposure", pool.label, pool.group, "0", words, wrong == 0)


def _f1_on_the_same(pool: Pool, method: str) -> tuple[float, float]:
    """F1 of ours and of a method on the clips that it was run on."""
    clips = pool.of(method)
    ours, theirs = (sum((clip.scores[name][0] for clip in clips), Score()) for name in (OURS, method))
    return ours.f1, theirs.f1


def _motion(pool: Pool) -> Iterator[Verdict]:
    found, least = pool.score(OURS), _ONSETS.get(_style(pool))
    if not found.motion_clips or least is None:
        return
    if found.onsets_of:
        holds = found.onsets >= least * found.onsets_of
        words = _of(found.onsets, found.onsets_of)
        yield Verdict("2 motion onsets", pool.label, pool.group, f"≥ {least}", words, holds)
    wrong = found.false_onsets / found.motion_clips
    yield Verdict("2 false onsets a clip", pool.label, pool.group, "≤ 1", f"{wrong:.2f}", wrong <= 1)


def _reads(pool: Pool) -> Iterator[Verdict]:
    share = _BYTES_SHARE.get(_style(pool))
    if share is None:
        return
    over = [clip for clip in pool.clips if clip.methods[OURS].bytes_read > _allowed_bytes(clip, share, pool)]
    most = max(clip.methods[OURS].bytes_read / clip.file_bytes for clip in pool.clips)
    asked = f"≤ {share:.0%}" + ("" if _style(pool) == "phone" else " or 1 MB")
    words = f"{len(over)} of {len(pool.clips)} clips above; at most {most:.1%}"
    yield Verdict("3 bytes read", pool.label, pool.group, asked, words, not over)
    ranges = max(clip.methods[OURS].ranges / max(1.0, clip.truth.duration_s / 60) for clip in pool.clips)
    holds = ranges <= _RANGES_A_MINUTE
    yield Verdict("3 ranges a minute", pool.label, pool.group, f"≤ {_RANGES_A_MINUTE}", f"{ranges:.0f}", holds)


def _allowed_bytes(clip: ClipResult, share: float, pool: Pool) -> float:
    return max(share * clip.file_bytes, 0 if _style(pool) == "phone" else _FREE_BYTES)


def _sizes(pools: Sequence[Pool]) -> Iterator[Verdict]:
    """1080p against 720p of the same content."""
    by_group = {(pool.label, pool.group): pool for pool in pools}
    for (label, group), small in by_group.items():
        large = by_group.get((label, group.replace("720p", "1080p")))
        if "720p" in group and large:
            times = large.cpu_s(OURS) / small.cpu_s(OURS)
            words = f"{times:.2f} times ({1000 * large.cpu_s(OURS):.0f} against {1000 * small.cpu_s(OURS):.0f} ms"
            if (many := large.profile()) and (few := small.profile()):
                words += f"; {many.decoded_mb:.2f} against {few.decoded_mb:.2f} MB decoded"
            asked = f"≤ {_LARGER_AT_MOST} times 720p"
            yield Verdict("1 CPU of 1080p", label, _style(small), asked, f"{words})", times <= _LARGER_AT_MOST)


def _of(part: int, whole: int) -> str:
    return f"{part}/{whole} = {ratio(part, whole):.2f}"


_CHECKS: tuple[Callable[[Pool], Iterator[Verdict]], ...] = (_cost, _cuts, _motion, _reads)
