"""The real `videosieve worker`, but every model takes VIDEOSIEVE_TEST_SLEEP_S longer: an artificially slow stage."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from pipeline.detections import Scored
from pipeline.media import BgrImage
from pipeline.models.runner import ModelScorer
from workers.cli import main

COMMAND = (sys.executable, "-m", "tests.fleet.slow_worker")
SLEEP_S = "VIDEOSIEVE_TEST_SLEEP_S"


def slow_down(sleep_s: float) -> None:
    score = ModelScorer.score

    def slowly(self: ModelScorer, images: Sequence[BgrImage]) -> Scored:
        time.sleep(sleep_s)
        return score(self, images)

    ModelScorer.score = slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(float(os.environ[SLEEP_S]))
    sys.exit(main(["worker"]))
