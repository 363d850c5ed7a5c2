"""What the cascade saves: three settings of a policy against its dearest model on everything, same clips, same run.

    python -m tests.bench.cascade [--clips DIR] [--policy NAME] [--repeats N] [--quick] [--out DIR]

Without clips it takes the demo's, and montages of every choice of them. The ways:

    lean, plain, careful     the policy, with the cheap stages' gap between yes and no narrowed, as it is, widened
    every keyframe           the last stage that answers a question, on all keyframes, no early exit
    1 fps                    the same on a frame a second of the wholly decoded video: the others are held to it

Writes JSON, a table and a plot into `docs/benchmarks`. Measures processor time of the whole process tree.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import combinations
from pathlib import Path

import av
import cv2
import numpy as np

from pipeline import policies
from pipeline.cascade.cascade import load_scorer, run_cascade
from pipeline.cascade.cost import nano, review_nano
from pipeline.cascade.crops import merged, views
from pipeline.cascade.policy import Policy, StagePart
from pipeline.cascade.ports import Models
from pipeline.cascade.question import OpenQuestion
from pipeline.detections import Findings
from pipeline.media import BgrImage
from pipeline.verdict import Answer
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from pipeline.video.synthesis import write_montage
from tests.bench.cascade_results import Run, Summary, as_table, plot, summaries
from tests.bench.measuring import tree_cpu_s

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
_POLICY = Path(__file__).with_name("cascade.yaml")
EVERY_KEYFRAME, ONE_FPS = "every keyframe", "1 fps"
REVIEW = "review"

Answers = dict[str, tuple[Answer, str]]
"""Question → its answer, and the stage that gave it."""


def variants(policy: Policy) -> dict[str, Policy]:
    """The policy with the gap between yes and no narrowed to a third, as it is, and widened half way to the ends.

    Only stages that a later one can correct are changed, where there is such a stage; else all.
    """
    return {"lean": _moved(policy, _narrowed), "plain": policy, "careful": _moved(policy, _widened)}


def _narrowed(positive_at: float, negative_at: float) -> tuple[float, float]:
    middle, gap = (positive_at + negative_at) / 2, positive_at - negative_at
    return middle + gap / 6, middle - gap / 6


def _widened(positive_at: float, negative_at: float) -> tuple[float, float]:
    return (1 + positive_at) / 2, negative_at / 2


def _moved(policy: Policy, move: Callable[[float, float], tuple[float, float]]) -> Policy:
    document = policy.document()
    stages = document["decision"]["stages"]
    last = {question: number for number, stage in enumerate(stages) for question in stage["answers"]}
    has_later = any(number < last[question] for number, stage in enumerate(stages) for question in stage["answers"])
    for number, stage in enumerate(stages):
        for question, rule in stage["answers"].items():
            if number < last[question] or not has_later:
                rule["positive_at"], rule["negative_at"] = move(rule["positive_at"], rule["negative_at"])
    return Policy.model_validate(document)


def cascaded(policy: Policy, pool: DecoderPool, models: Models, clip: Path) -> Answers:
    with LocalSource(clip) as source:
        found = pool.extract(source, policy.decision.keyframes.settings())
    outcome = run_cascade(policy, found.images, models, coverage=found.coverage)
    return {verdict.question: (verdict.answer, verdict.stage) for verdict in outcome.without_doubts().verdicts}


def on_every_keyframe(policy: Policy, pool: DecoderPool, models: Models, clip: Path) -> Answers:
    with LocalSource(clip) as source:
        found = pool.extract(source, policy.decision.keyframes.settings())
    return judged_by_last_stage(policy, found.images, models)


def on_one_frame_a_second(policy: Policy, _: DecoderPool, models: Models, clip: Path) -> Answers:
    return judged_by_last_stage(policy, list(frames_a_second(clip)), models)


def frames_a_second(clip: Path) -> Iterator[BgrImage]:
    """The first frame of each second; everything is decoded, as there is no way around it."""
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        due_s = None
        for frame in container.decode(stream):
            at_s = float(frame.time or 0.0)
            if due_s is None or at_s >= due_s:
                due_s = at_s + 1.0 if due_s is None else due_s + 1.0
                yield frame.to_ndarray(format="bgr24").astype(np.uint8, copy=False)


def judged_by_last_stage(policy: Policy, images: Sequence[BgrImage], models: Models) -> Answers:
    """Every question by the last stage that answers it, which looks at every image."""
    last = {question: stage for stage in policy.decision.stages for question in stage.answers}
    seen: dict[str, dict[int, Findings]] = {}
    answers: Answers = {}
    for name, stage in last.items():
        if stage.name not in seen:
            seen[stage.name] = _seen_by(policy, stage, images, models)
        question = OpenQuestion.about(name, len(images))
        if images:
            question.settle(stage, seen[stage.name])
        answers[name] = (question.answer, REVIEW if question.is_open else stage.name)
    return answers


def _seen_by(policy: Policy, stage: StagePart, images: Sequence[BgrImage], models: Models) -> dict[int, Findings]:
    pointed_at: Mapping[int, Findings] = {}
    if stage.crop is not None:
        (source,) = (one for one in policy.decision.stages if one.name == stage.crop.stage)
        pointed_at = _seen_by(policy, source, images, models)
    scorer = load_scorer(models, stage, policy)
    found: dict[int, Findings] = {}
    for index, image in enumerate(images):
        parts = views(image, stage.crop, pointed_at.get(index))
        scored = scorer.score([part.image for part in parts])
        found[index] = merged(list(zip(parts, scored.findings, strict=True)))
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """One way to answer a policy's questions about a clip."""

    name: str
    policy: Policy
    answer: Callable[[Policy, DecoderPool, Models, Path], Answers]


def ways(policy: Policy) -> list[Way]:
    return [
        *(Way(name, changed, cascaded) for name, changed in variants(policy).items()),
        Way(EVERY_KEYFRAME, policy, on_every_keyframe),
        Way(ONE_FPS, policy, on_one_frame_a_second),
    ]


def measure(policy: Policy, clips: Sequence[Path], pool: DecoderPool, models: Models, *, repeats: int) -> list[Run]:
    """Every way on every clip, in turn, so that a busy minute of the machine touches all of them; the median counts."""
    cv2.setNumThreads(1)
    asked = ways(policy)
    for way in asked:
        way.answer(way.policy, pool, models, clips[0])  # loads models, warms caches
    runs: list[Run] = []
    for clip in clips:
        tried: dict[str, list[Run]] = {way.name: [] for way in asked}
        for number in range(repeats):
            for way in asked:
                if number == 0 or way.name != ONE_FPS:  # it takes seconds, more than the clock's noise
                    tried[way.name].append(_once(way, pool, models, clip))
        runs += [sorted(same, key=lambda run: run.cpu_s)[len(same) // 2] for same in tried.values()]
    return runs


def _once(way: Way, pool: DecoderPool, models: Models, clip: Path) -> Run:
    cpu_s, wall_s = tree_cpu_s(), time.monotonic()
    answers = way.answer(way.policy, pool, models, clip)
    cpu_s, wall_s = tree_cpu_s() - cpu_s, time.monotonic() - wall_s
    prices = way.policy.commercial.prices
    by = {question: REVIEW if answer is Answer.REVIEW else stage for question, (answer, stage) in answers.items()}
    return Run(
        way=way.name,
        clip=clip.name,
        cpu_s=cpu_s,
        wall_s=wall_s,
        machine_nano=nano(prices.cpu_second, cpu_s),
        review_nano=review_nano(prices) * sum(answer is Answer.REVIEW for answer, _ in answers.values()),
        answers={question: answer.value for question, (answer, _) in answers.items()},
        stages=by,
    )


def montages(clips: Sequence[Path], folder: Path, *, duration_s: float = 20.0) -> list[Path]:
    """A short video of every choice of `clips`, so that questions have other answers in each; kept for the next run."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for size in range(1, len(clips) + 1):
        for chosen in combinations(clips, size):
            path = folder / f"{'-'.join(clip.stem for clip in chosen)}.mp4"
            if not path.exists():
                partial = path.with_name(f"partial-{path.name}")
                write_montage(partial, chosen, shot_s=3.0, duration_s=duration_s, width=480, height=270, fps=15)
                partial.replace(path)
            made.append(path)
    return made


def write(out: Path, runs: Sequence[Run], policy: Policy, facts: Mapping[str, str]) -> list[Summary]:
    """JSON and a table; the summaries."""
    found = summaries(runs, reference=ONE_FPS)
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "policy": policy.name,
        "decision_hash": policy.decision_hash,
        "facts": facts,
        "ways": [summary.as_json() for summary in found],
        "runs": [run.as_json() for run in runs],
    }
    (out / "cascade.json").write_text(json.dumps(document, indent=1) + "\n")
    table = as_table(
        found, policy, videos=len({run.clip for run in runs}), facts=facts, baselines=(EVERY_KEYFRAME, ONE_FPS)
    )
    (out / "cascade.md").write_text(table)
    return found


def main() -> None:
    from workers.analysis import open_decoders, open_models
    from workers.demo import prepare_clips
    from workers.settings import load_settings

    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=Path, help="a folder of videos; those of the demo without")
    parser.add_argument(
        "--policy", default=str(Path(__file__).with_name("cascade.yaml")), help="a shipped one or a file"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="three clips once: shows that it works")
    parser.add_argument("--out", type=Path, default=_DOCS)
    options = parser.parse_args()
    settings = load_settings()
    policy = policies.load(options.policy)
    if options.clips:
        clips = sorted(path for path in options.clips.iterdir() if path.suffix in {".mp4", ".mov", ".mkv", ".webm"})
    else:
        folder = Path(".bench") / "cascade"
        demo = prepare_clips(folder / "demo")
        clips = [*demo, *montages(demo[:-1], folder / "montages")]
    started_s = time.monotonic()
    with open_decoders(settings.decoder, processes=1) as pool:
        few, once = (clips[:3], 1) if options.quick else (clips, options.repeats)
        runs = measure(policy, few, pool, open_models(settings), repeats=once)
    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in ("onnxruntime", "av", "numpy")),
        "command": " ".join(["python -m tests.bench.cascade", *sys.argv[1:]]),
        "wall_s": f"{time.monotonic() - started_s:.0f}",
    }
    found = write(options.out, runs, policy, facts)
    plot(found, options.out / "cascade.svg")
    sys.stdout.write((options.out / "cascade.md").read_text())


if __name__ == "__main__":
    main()
