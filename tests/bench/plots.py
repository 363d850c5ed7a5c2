"""Plots of a benchmark run, and contact sheets of the keyframes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from pipeline.video.synthesis import fitted
from tests.bench.results import OURS, Pool, curve

_SHEET_PX = (320, 180)
_SHEET_COLUMNS = 3
_CAPTION_PX = 20


def pyplot() -> Any:
    importlib.import_module("matplotlib").use("svg")
    plots: Any = importlib.import_module("matplotlib.pyplot")
    plots.rcParams.update({"svg.hashsalt": "videosieve", "font.size": 9, "axes.spines.top": False})
    return plots


def plot_budget(pools: Sequence[Pool], path: Path) -> None:
    """Cut F1 and onset recall against mean CPU seconds as the decoding budget varies, the baselines beside."""
    plots = pyplot()
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
    save(figure, path)


def plot_cost(pools: Sequence[Pool], path: Path) -> None:
    """CPU seconds a clip by method, the median of each group."""
    plots = pyplot()
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
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot().close(figure)


def write_sheet(path: Path, images: Sequence[bytes], keyframes: Sequence[tuple[float, str]] = ()) -> None:
    """The keyframes of one clip beside each other, as one small JPEG; times and reasons written below."""
    captions = [f"{t_s:.1f} s  {reason}" for t_s, reason in keyframes] or [""] * len(images)
    cells = [_cell(data, caption) for data, caption in zip(images, captions, strict=True)]
    columns = min(_SHEET_COLUMNS, max(1, len(cells)))
    cells += [np.zeros_like(cells[0])] * (-len(cells) % columns)
    rows = [np.hstack(cells[at : at + columns]) for at in range(0, len(cells), columns)]
    ok, data = cv2.imencode(".jpg", np.vstack(rows), [cv2.IMWRITE_JPEG_QUALITY, 70])
    if ok:
        path.write_bytes(data.tobytes())


def _cell(data: bytes, caption: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The image within the cell, black around it, the caption below."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("a keyframe is no image")
    cell = np.zeros((_SHEET_PX[1] + _CAPTION_PX, _SHEET_PX[0], 3), np.uint8)
    cell[: _SHEET_PX[1]] = fitted(np.asarray(image, np.uint8), _SHEET_PX)
    place = (6, _SHEET_PX[1] + _CAPTION_PX - 6)
    cv2.putText(cell, caption, place, cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 255, 255), 1, cv2.LINE_AA)
    return cell
