"""What bounds the fleet on this machine: decoding alone, the models alone, and what the usual way would cost."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cascade.cascade import load_scorer, run_cascade
from pipeline.cascade.policy import Policy
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage, Extraction
from pipeline.models.runner import ModelStore
from pipeline.video import extract
from pipeline.video.decode import SampleDecoder
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests.bench.baselines import content
from tests.bench.measuring import measure_baseline
from tests.fleet.processes import tree_cpu_s

CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Limit:
    """One stage alone on all cores: seconds a video, wall and CPU."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits for the clips of one group. `child` splits what a decoder child does; shares add up to one."""

    decode: Limit
    models: Limit
    jpeg_cpu_s: float
    keyframes: float
    mid_share: float
    mid_image_cpu_s: float
    child: dict[str, float]
    usual_cpu_s: float | None


def measure(clips: Sequence[Path], policy: Policy, models: ModelStore, *, rounds: int, usual: int) -> GroupLimits:
    """Measure on `clips`, each `rounds` times; ContentDetector on the first `usual` of them."""
    settings = policy.decision.keyframes.settings()
    with DecoderPool(CORES, Limits()) as pool:

        def decode(clip: Path) -> Extraction:
            with LocalSource(clip) as source:
                return pool.extract(source, settings)

        found = _on_all_cores(decode, clips)[0]  # warms up the pool, too
        decoding = _on_all_cores(decode, list(clips) * rounds)[1]

    def judge(extraction: Extraction) -> Any:
        return run_cascade(policy, extraction.images, models, coverage=extraction.coverage)

    outcomes, _ = _on_all_cores(judge, found)
    judging = _on_all_cores(judge, found * rounds)[1]
    images = [image for extraction in found for image in extraction.images]
    start_s = time.process_time()
    for image in images:
        encode_jpeg(image)
    jpeg_s = (time.process_time() - start_s) / len(clips)
    later = sum(len(stage.findings) for outcome in outcomes for stage in outcome.stages[1:])
    return GroupLimits(
        decode=decoding,
        models=judging,
        jpeg_cpu_s=jpeg_s,
        keyframes=len(images) / len(clips),
        mid_share=later / len(images),
        mid_image_cpu_s=_mid_image_cpu_s(policy, models, images),
        child=_child_shares(clips, policy),
        usual_cpu_s=_usual_cpu_s(clips[:usual], judging),
    )


def _mid_image_cpu_s(policy: Policy, models: ModelStore, images: Sequence[BgrImage]) -> float:
    """CPU seconds of the stages after the first on one keyframe that reaches them; 0 where there is none."""
    scorers = [load_scorer(models, stage, policy) for stage in policy.decision.stages[1:]]
    return sum(scorer.score(images).cpu_s for scorer in scorers) / len(images)


def _on_all_cores(work: Callable[[Any], Any], items: Sequence[Any]) -> tuple[list[Any], Limit]:
    cpu_s, wall_s = tree_cpu_s(os.getpid()), time.monotonic()
    with ThreadPoolExecutor(CORES) as threads:
        results = list(threads.map(work, items))
    wall_s, cpu_s = time.monotonic() - wall_s, tree_cpu_s(os.getpid()) - cpu_s
    return results, Limit(wall_s / len(items), cpu_s / len(items))


def _usual_cpu_s(clips: Sequence[Path], judging: Limit) -> float | None:
    """PySceneDetect's ContentDetector, then the same models on as many pictures; None where it is not installed."""
    if not clips or importlib.util.find_spec("scenedetect") is None:
        return None
    return sum(measure_baseline(content, clip).cpu_s for clip in clips) / len(clips) + judging.cpu_s


def _child_shares(clips: Sequence[Path], policy: Policy) -> dict[str, float]:
    """Shares of an extraction's time within this process: reading the index, decoding, pictures, the choice."""
    spent = dict.fromkeys(("index", "decode", "thumbnails and pictures"), 0.0)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            start_s = time.thread_time()
            try:
                return function(*args, **more)
            finally:
                spent[name] += time.thread_time() - start_s

        return call

    places: list[tuple[Any, str, str]] = [
        (extract, "read_index", "index"),
        (SampleDecoder, "decode", "decode"),
        (extract, "thumbnail", "thumbnails and pictures"),
        (extract, "upright_image", "thumbnails and pictures"),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    start_s = time.thread_time()
    try:
        for owner, name, stage in places:
            setattr(owner, name, timed(stage, getattr(owner, name)))
        for clip in clips:
            with LocalSource(clip) as source:
                extractor = extract.Extractor(source, policy.decision.keyframes.settings(), Limits())
                list(extractor.images(extractor.findings().choices))
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)
    total_s = time.thread_time() - start_s
    return {name: s / total_s for name, s in spent.items()} | {
        "cuts, motion, choice, rest": 1 - sum(spent.values()) / total_s
    }
