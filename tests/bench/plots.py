"""Plots of a benchmark run, and contact sheets of the keyframes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tests.bench.results import OURS, Pool, curve

_SHEET_PX = (256, 144)
_SHEET_COLUMNS = 6


def _pyplot() -> Any:
    importlib.import_module("matplotlib").use("svg")
    plots: Any = importlib.import_module("matplotlib.pyplot")
    plots.rcParams.update({"svg.hashsalt": "videosieve", "font.size": 9, "axes.spines.top": False})
    return plots


def plot_budget(pools: Sequence[Pool], path: Path) -> None:
    """Cut F1 and onset recall against mean CPU seconds as the decoding budget varies, the baselines beside."""
    plots = _pyplot()
    figure, (left, right) = plots.subplots(1, 2, figsize=(10, 4))
    for number, pool in enumerate(pools):
        points = curve(pool)
        colour = f"C{number}"
        style = {"marker": "o", "ms": 3, "color": colour, "label": f"{pool.label} {pool.group}"}
        left.plot([p.cpu_s for p in points], [p.f1 for p in points], **style)
        if pool.score(OURS).onsets_of:
            right.plot([p.cpu_s for p in points], [p.onset_recall for p in points], **style)
        for method, mark in (("ContentDetector", "s"), ("AdaptiveDetector", "^"), ("FFmpeg scene", "x")):
            if method in pool.methods():
                left.plot([pool.cpu_s(method)], [pool.score(method).f1], mark, ms=5, color=colour, alpha=0.6)
    for axes, title in ((left, "cut F1 (■ Content, ▲ Adaptive, × FFmpeg)"), (right, "motion onset recall")):
        axes.set(xscale="log", xlabel="CPU s a clip", title=title, ylim=(0, 1.03))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    _save(figure, path)


def plot_cost(pools: Sequence[Pool], path: Path) -> None:
    """CPU seconds a clip by method, the median of each group."""
    plots = _pyplot()
    figure, axes = plots.subplots(figsize=(8, 3.5))
    methods = list(dict.fromkeys(method for pool in pools for method in pool.methods()))
    for number, method in enumerate(methods):
        places = np.arange(len(pools)) + (number - (len(methods) - 1) / 2) * 0.8 / len(methods)
        heights = [pool.cpu_s(method) if method in pool.methods() else np.nan for pool in pools]
        axes.bar(places, heights, 0.8 / len(methods), label=method)
    axes.set(yscale="log", ylabel="CPU s a clip (median)")
    axes.set_xticks(range(len(pools)), [f"{pool.label}\n{pool.group}" for pool in pools])
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3, axis="y")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    _pyplot().close(figure)


def write_sheet(path: Path, images: Sequence[bytes]) -> None:
    """The keyframes of one clip beside each other, as one small JPEG."""
    cells = [_cell(data) for data in images]
    cells += [np.zeros((_SHEET_PX[1], _SHEET_PX[0], 3), np.uint8)] * (-len(cells) % _SHEET_COLUMNS)
    rows = [np.hstack(cells[at : at + _SHEET_COLUMNS]) for at in range(0, len(cells), _SHEET_COLUMNS)]
    ok, data = cv2.imencode(".jpg", np.vstack(rows), [cv2.IMWRITE_JPEG_QUALITY, 60])
    if ok:
        path.write_bytes(data.tobytes())


def _cell(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("a keyframe is no image")
    return np.asarray(cv2.resize(image, _SHEET_PX, interpolation=cv2.INTER_AREA), np.uint8)
