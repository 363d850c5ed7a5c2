"""Fits the weights of `pipeline.video.likely` on clips with known cuts, and says how well they rank.

    python -m tests.bench.fit_likely FOLDER... [--write]

Ranks are those of clips that were left out of the fit, one at a time: how many places to look at they cost. Of long
GOPs it says what sizes alone would find, and how often they would be wrong, at several thresholds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.video import likely_weights
from pipeline.video.likely import signs
from pipeline.video.limits import Limits
from pipeline.video.opening import read_index
from pipeline.video.source import LocalSource
from tests.bench.scoring import Truth, read_truth

_RIDGE, _ROUNDS = 3.0, 25
_HARD_WEIGHT = 10.0
_INNER_SHARE = 0.7
_PLACES = (8, 12, 16, 20)


@dataclass(frozen=True, slots=True)
class _Clip:
    name: str
    truth: Truth
    t_s: NDArray[np.float64]
    is_key: NDArray[np.bool_]
    columns: NDArray[np.float64]
    is_cut: NDArray[np.bool_]
    is_gradual: NDArray[np.bool_]
    is_edge: NDArray[np.bool_]


def _clip(path: Path) -> _Clip:
    with LocalSource(path) as source:
        index = read_index(source, Limits())
    order = np.argsort(index.t_s, kind="stable")
    t_s, is_key, truth = index.t_s[order], index.is_key[order], read_truth(path)
    is_cut, is_gradual, is_edge = (np.zeros(len(t_s), bool) for _ in range(3))
    for cut_s in truth.cuts_s:
        is_cut[np.abs(t_s - cut_s).argmin()] = True
    for _, start_s, end_s in truth.gradual:
        away_s = np.abs(t_s - (start_s + end_s) / 2)
        is_gradual |= away_s <= _INNER_SHARE * (end_s - start_s) / 2
        is_edge |= away_s <= (end_s - start_s) / 2 + 0.1
    _, columns = signs(index.size_bytes[order], is_key)
    return _Clip(path.stem, truth, t_s, is_key, columns, is_cut, is_gradual, is_edge & ~is_gradual)


def _is_of(path: Path, group: str) -> bool:
    return path.with_suffix(".json").exists() and read_truth(path).group == group


def _fit(columns: NDArray[np.float64], is_it: NDArray[np.bool_], weight: float) -> tuple[float, ...]:
    """Ridge-regularised logistic regression by Newton's method, on standardised columns; intercept first."""
    centre, scale = columns.mean(0), columns.std(0) + 1e-6
    design = np.c_[np.ones(len(columns)), (columns - centre) / scale]
    ridge = np.r_[1e-6, np.full(columns.shape[1], _RIDGE)]
    wanted, weights = is_it.astype(float), np.where(is_it, weight, 1.0)
    found = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        guess = 1 / (1 + np.exp(-np.clip(design @ found, -30, 30)))
        slope = design.T @ (weights * (guess - wanted)) + ridge * found
        bend = (design * (weights * guess * (1 - guess))[:, None]).T @ design + np.diag(ridge)
        found -= np.linalg.solve(bend, slope)
    plain = found[1:] / scale
    return tuple(round(float(value), 4) for value in (found[0] - plain @ centre, *plain))


def _both(clips: Sequence[_Clip]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    columns = np.concatenate([clip.columns for clip in clips])
    cut, gradual = (np.concatenate([getattr(clip, part) for clip in clips]) for part in ("is_cut", "is_gradual"))
    inner = ~np.concatenate([clip.is_key for clip in clips])
    clear = inner & ~np.concatenate([clip.is_edge for clip in clips])
    return _fit(columns[inner | cut], cut[inner | cut], _HARD_WEIGHT), _fit(columns[clear], gradual[clear], 1.0)


def _gradual(clips: Sequence[_Clip]) -> tuple[float, ...]:
    """For long GOPs: of the plain signs only; hinges found no more of 88 left-out blends."""
    columns, gradual, clear = (
        np.concatenate(parts)
        for parts in zip(*((c.columns, c.is_gradual, ~(c.is_key | c.is_edge)) for c in clips), strict=True)
    )
    return _fit(columns[clear, : columns.shape[1] // 3], gradual[clear], 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="into pipeline/video/likely_weights.py")
    parser.add_argument("--skip-report", action="store_true")
    options = parser.parse_args()
    phone, web, hevc = (
        [_clip(path) for folder in options.folders for path in sorted(folder.glob("*.mp4")) if _is_of(path, group)]
        for group in ("phone", "web", "hevc")
    )
    tables = (*_both(phone), _gradual(web), _gradual(hevc))
    text = [
        '"""Fitted by `tests.bench.fit_likely`: the intercept, then one weight for each of `likely.signs`."""',
        "",
    ]
    for name, weights in zip(("HARD", "GRADUAL", "GRADUAL_WEB", "GRADUAL_HEVC"), tables, strict=True):
        text += [f"{name}: tuple[float, ...] = ("]
        text += ["    " + ", ".join(map(str, weights[at : at + 12])) + "," for at in range(0, len(weights), 12)]
        text += [")"]
    if options.write:
        Path(likely_weights.__file__).write_text("\n".join(text) + "\n")
    if not options.skip_report:
        _report(phone)
        for group, clips in (("web", web), ("hevc", hevc)):
            _report_blends(group, clips)


def _report_blends(group: str, clips: Sequence[_Clip]) -> None:
    found: list[tuple[float, bool]] = []
    for clip in clips:
        weights = _gradual([other for other in clips if other is not clip])
        score = clip.columns[:, : len(weights) - 1] @ np.array(weights[1:]) + weights[0]
        likelihood = np.where(clip.is_key, 0.0, 1 / (1 + np.exp(-np.clip(score, -30, 30))))
        likelihood = np.convolve(likelihood, np.full(9, 1 / 9), "same")
        left = list(clip.truth.gradual)
        for place_s in _places(clip, likelihood, 1.0):
            hit = next((blend for blend in left if blend[1] <= place_s <= blend[2]), None)
            if hit is not None:
                left.remove(hit)
            found.append((float(likelihood[np.abs(clip.t_s - place_s).argmin()]), hit is not None))
    of = sum(len(clip.truth.gradual) for clip in clips)
    for least in (0.2, 0.5, 0.8, 0.95):
        above = [is_hit for likelihood, is_hit in found if likelihood > least]
        line = f"{group}: above {least} {sum(above)} of {of} blends, {len(above) - sum(above)} other places"
        print(line)  # noqa: T201 - the output


def _report(clips: Sequence[_Clip]) -> None:
    ranks: dict[str, list[int]] = {}
    for clip in clips:
        if not clip.truth.gradual:
            continue
        hard, gradual = _both([other for other in clips if other is not clip])
        scores = [clip.columns @ np.array(weights[1:]) + weights[0] for weights in (hard, gradual)]
        scores[1] = np.convolve(scores[1], np.full(9, 1 / 9), "same")
        places = [_places(clip, score, apart_s) for score, apart_s in zip(scores, (0.2, 0.6), strict=True)]
        for cut_s in clip.truth.cuts_s:
            ranks.setdefault("hard", []).append(_rank(places[0], cut_s - 0.04, cut_s + 0.04))
        for kind, start_s, end_s in clip.truth.gradual:
            ranks.setdefault(kind, []).append(_rank(places[1], start_s, end_s))
    for kind, found in ranks.items():
        shares = ", ".join(f"{sum(rank < count for rank in found)} in {count}" for count in _PLACES)
        print(f"{kind}: of {len(found)}, {shares}")  # noqa: T201 - the output


def _places(clip: _Clip, score: NDArray[np.float64], apart_s: float) -> list[float]:
    score, places = np.where(clip.is_key, -np.inf, score), list[float]()
    while len(places) < 60 and np.isfinite(score.max()):
        best = int(score.argmax())
        places.append(float(clip.t_s[best]))
        score[np.abs(clip.t_s - clip.t_s[best]) < apart_s] = -np.inf
    return places


def _rank(places: Sequence[float], start_s: float, end_s: float) -> int:
    return next((rank for rank, place_s in enumerate(places) if start_s <= place_s <= end_s), 99)


if __name__ == "__main__":
    main()
