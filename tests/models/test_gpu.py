"""On a real GPU. `VIDEOSIEVE_TEST_GPU` (cuda or tensorrt) promises one: then nothing here may skip or fall back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from pipeline.models.onnx import Where
from pipeline.models.registry import Registry
from pipeline.models.runner import BATCH_SIZES, ModelStore
from tests.models import tiny

PROMISED = cast("Where", os.environ.get("VIDEOSIEVE_TEST_GPU", "cpu"))

pytestmark = pytest.mark.skipif("VIDEOSIEVE_TEST_GPU" not in os.environ, reason="VIDEOSIEVE_TEST_GPU promises no GPU")


def test_a_model_runs_on_the_promised_device_and_says_what_the_cpu_says(tmp_path: Path) -> None:
    weights = tiny.channel_means(layout="NCHW")
    fields = tiny.fields(
        weights, head="classifier", labels=["blue", "green", "red"], preprocess={"scale": [1 / 255] * 3}
    )
    (tmp_path / "tiny.onnx").write_bytes(weights)
    registry = Registry(tmp_path, extra_catalog=tiny.catalogue(tmp_path, {"tiny": fields}))
    random = np.random.default_rng(1)
    images = [random.integers(0, 255, (60, 80, 3), dtype=np.uint8) for _ in range(19)]
    there = ModelStore(registry, device=PROMISED).scorer("tiny")
    assert there.device == PROMISED
    assert there.batch_size == BATCH_SIZES[there.device]
    scored = there.score(images)
    assert scored.device_s > 0
    expected = ModelStore(registry, device="cpu").scorer("tiny").score(images)
    for found, wanted in zip(scored.findings, expected.findings, strict=True):
        for label in there.labels:
            assert found.score([label]) == pytest.approx(wanted.score([label]), abs=2e-3)
