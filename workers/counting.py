"""What work adds to the metrics; what a committed run adds are the same rows that the ledger keeps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pipeline.costs import StageCost
from pipeline.verdict import CascadeOutcome
from workers.metrics import Metrics


@contextmanager
def spending(metrics: Metrics, stage: str) -> Iterator[None]:
    """Count this thread's processor time of the `with` block."""
    start_s = time.thread_time()
    try:
        yield
    finally:
        metrics.stage_cpu.labels(stage=stage).inc(time.thread_time() - start_s)


def count_costs(metrics: Metrics, currency: str, costs: Iterable[StageCost]) -> None:
    """Money, time, images and yardsticks of each stage."""
    for cost in costs:
        metrics.money.labels(currency=currency, stage=cost.stage).inc(cost.money_nano)
        metrics.stage_cpu.labels(stage=cost.stage).inc(cost.cpu_s)
        metrics.stage_device.labels(stage=cost.stage).inc(cost.device_s)
        metrics.stage_images.labels(stage=cost.stage).inc(cost.images)
        metrics.yardstick.labels(currency=currency, on="every_frame").inc(cost.every_frame_nano)
        metrics.yardstick.labels(currency=currency, on="every_keyframe").inc(cost.every_keyframe_nano)


def count_outcome(metrics: Metrics, policy: str, outcome: CascadeOutcome) -> None:
    """Verdicts, but for those that a VLM is yet to give, and how many questions each stage settled."""
    for stage in outcome.stages:
        settled = len(stage.settled)
        metrics.stage_settled.labels(stage=stage.stage, result="settled").inc(settled)
        metrics.stage_settled.labels(stage=stage.stage, result="passed_on").inc(len(stage.asked) - settled)
    doubts = {doubt.question for doubt in outcome.doubts}
    for verdict in outcome.verdicts:
        if verdict.question not in doubts:
            metrics.verdicts.labels(
                policy=policy, question=verdict.question, answer=verdict.answer.value, stage=verdict.stage
            ).inc()
