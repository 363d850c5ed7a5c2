from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from pipeline.errors import FatalError, Reason
from pipeline.models import classifier
from pipeline.models.catalog import ColourOrder, Fit, Head, Interpolation, ModelSpec, Preprocess

PREPROCESS = Preprocess(input_px=32, fit=Fit.STRETCH, colour=ColourOrder.BGR, interpolation=Interpolation.AREA)
SPEC = ModelSpec(
    name="tiny",
    head=Head.CLASSIFIER,
    task="",
    licence="",
    file="tiny.onnx",
    sha256="0" * 64,
    size_bytes=1,
    sources=(),
    preprocess=PREPROCESS,
)

WIDE = np.zeros((64, 128, 3), dtype=np.uint8)
WIDE[:, :16] = 255  # the leftmost eighth is white


def white_columns(preprocess: Preprocess, *, input_px: int = 32) -> int:
    view = classifier.prepare(WIDE, preprocess, input_px=input_px)
    assert view.shape == (input_px, input_px, 3)
    return int((view[0, :, 0] > 127).sum())


def test_stretching_shows_the_whole_image() -> None:
    assert white_columns(PREPROCESS) == 4


def test_covering_shows_the_centre_of_the_longer_side() -> None:
    assert white_columns(dataclasses.replace(PREPROCESS, fit=Fit.COVER)) == 0


def test_resizing_to_more_than_the_input_crops_the_centre() -> None:
    assert white_columns(dataclasses.replace(PREPROCESS, resize_px=40)) == 1
    assert white_columns(dataclasses.replace(PREPROCESS, resize_px=40), input_px=64) == 2


def test_the_jpeg_round_trip_leaves_its_traces() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    lossy = classifier.prepare(noise, dataclasses.replace(PREPROCESS, jpeg_quality=75), input_px=32)
    assert lossy.shape == noise.shape
    assert 5 < np.abs(lossy.astype(int) - noise).mean() < 60


def test_probabilities_become_labels_best_first() -> None:
    said = classifier.findings(np.array([0.25, 0.75], dtype=np.float32), SPEC, ("sfw", "nsfw"))
    assert [(one.label, one.score, one.box) for one in said.detections] == [
        ("nsfw", 0.75, None),
        ("sfw", 0.25, None),
    ]


def test_logits_go_through_a_softmax_that_does_not_overflow() -> None:
    logits = np.array([1000.0, 1000.0 + math.log(3), -1000.0], dtype=np.float32)
    said = classifier.findings(logits, dataclasses.replace(SPEC, logits=True), ("a", "b", "c"))
    assert [one.label for one in said.detections] == ["b", "a", "c"]
    assert [one.score for one in said.detections] == pytest.approx([0.75, 0.25, 0.0], abs=1e-3)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ([0.2, 0.3, 0.5], r"\(3,\) per image, expected \(2 labels"),
        ([[0.2, 0.8]], r"\(1, 2\)"),
        ([math.nan, 0.5], "NaN"),
        ([math.inf, 0.5], "infinite"),
        ([-3.0, 4.0], "logits: true"),
    ],
)
def test_output_that_is_no_probabilities_of_the_labels_means_a_bad_model(output: object, said: str) -> None:
    with pytest.raises(FatalError, match=said) as caught:
        classifier.findings(np.array(output, dtype=np.float32), SPEC, ("sfw", "nsfw"))
    assert caught.value.reason is Reason.BAD_MODEL
