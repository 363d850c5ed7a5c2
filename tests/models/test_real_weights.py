"""The shipped models with their real weights. `VIDEOSIEVE_TEST_MODELS_DIR` promises that they are pulled there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.models.catalog import Head
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore

MODELS_DIR = os.environ.get("VIDEOSIEVE_TEST_MODELS_DIR")
EXTRA_CATALOG = os.environ.get("VIDEOSIEVE_TEST_EXTRA_CATALOG")

pytestmark = pytest.mark.skipif(
    MODELS_DIR is None, reason="VIDEOSIEVE_TEST_MODELS_DIR does not say where the real weights are pulled to"
)


@pytest.fixture(scope="module")
def models() -> ModelStore:
    extra = Path(EXTRA_CATALOG) if EXTRA_CATALOG else None
    return ModelStore(Registry(Path(MODELS_DIR or ""), extra_catalog=extra), device="auto")


@pytest.mark.parametrize(
    ("name", "label", "sizes"),
    [
        ("nudenet-320n", "FACE_FEMALE", (None, 320, 640)),
        ("open-nsfw", "nsfw", (None, 224)),
        ("yolox-nano", "person", (None, 416)),
    ],
)
def test_a_shipped_model_sees_nothing_in_a_grey_image(
    models: ModelStore, name: str, label: str, sizes: tuple[int | None, ...]
) -> None:
    assert label in models.labels(name)
    grey = np.full((270, 480, 3), 128, dtype=np.uint8)
    for input_px in sizes:
        (finding,) = models.scorer(name, input_px).score([grey]).findings
        assert finding.score([label]) < 0.3


def test_probabilities_of_the_shipped_classifiers_add_up_to_one(models: ModelStore) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (100, 100, 3)).astype(np.uint8)
    for spec in Registry(Path()).specs():
        if spec.head is Head.CLASSIFIER:
            (finding,) = models.scorer(spec.name).score([noise]).findings
            assert sum(one.score for one in finding.detections) == pytest.approx(1.0, abs=1e-4)
