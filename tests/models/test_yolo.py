from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.detections import Box
from pipeline.errors import FatalError, Reason
from pipeline.models import yolo
from pipeline.models.catalog import ColourOrder, Fit, Head, ModelSpec, Preprocess
from tests.models.tiny import yolo_output

PREPROCESS = Preprocess(input_px=64, fit=Fit.LETTERBOX, colour=ColourOrder.BGR, pad=(1, 2, 3))
SPEC = ModelSpec(
    name="tiny",
    head=Head.YOLO,
    task="",
    licence="",
    file="tiny.onnx",
    sha256="0" * 64,
    size_bytes=1,
    sources=(),
    preprocess=PREPROCESS,
)
SAME = yolo.Letterbox(64, 64, 1.0, 1.0, 0, 0)


def found(
    output: NDArray[np.float32],
    labels: tuple[str, ...] = ("a", "b"),
    box: yolo.Letterbox = SAME,
    **changes: object,
) -> list[tuple[str, float, Box | None]]:
    spec = dataclasses.replace(SPEC, **changes)  # type: ignore[arg-type]
    said = yolo.findings(output, spec, labels, box, width_px=64, height_px=64)
    return [(one.label, round(one.score, 4), one.box) for one in said.detections]


def test_a_wide_image_is_centred_between_bars_of_the_pad_colour() -> None:
    image = np.full((32, 128, 3), 200, dtype=np.uint8)
    canvas, box = yolo.letterbox(image, width_px=64, height_px=64, preprocess=PREPROCESS)
    assert (canvas[24:40] == 200).all()
    assert (canvas[:24] == (1, 2, 3)).all()
    assert (canvas[40:] == (1, 2, 3)).all()
    assert box == yolo.Letterbox(128, 32, 0.5, 0.5, 0, 24)


def test_a_corner_letterbox_starts_at_the_left_top() -> None:
    corner = dataclasses.replace(PREPROCESS, fit=Fit.LETTERBOX_CORNER)
    canvas, box = yolo.letterbox(np.full((64, 32, 3), 9, dtype=np.uint8), width_px=64, height_px=64, preprocess=corner)
    assert (canvas[:, :32] == 9).all()
    assert (canvas[:, 32:] == (1, 2, 3)).all()
    assert (box.left_px, box.top_px) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 400),
    height=st.integers(1, 400),
    fit=st.sampled_from([Fit.LETTERBOX, Fit.LETTERBOX_CORNER]),
    at=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_a_box_finds_its_way_to_the_input_and_back(width: int, height: int, fit: Fit, at: list[float]) -> None:
    image = np.zeros((height, width, 3), dtype=np.uint8)
    canvas, box = yolo.letterbox(image, width_px=96, height_px=64, preprocess=dataclasses.replace(PREPROCESS, fit=fit))
    assert canvas.shape == (64, 96, 3)
    left, right = sorted((at[0] * width, at[1] * width))
    top, bottom = sorted((at[2] * height, at[3] * height))
    there = np.array(
        [
            [
                left * box.scale_x + box.left_px,
                top * box.scale_y + box.top_px,
                right * box.scale_x + box.left_px,
                bottom * box.scale_y + box.top_px,
            ]
        ],
        dtype=np.float32,
    )
    assert there[0, 2] <= 96.001
    assert there[0, 3] <= 64.001
    tolerance = 1e-4 / min(box.scale_x, box.scale_y)
    np.testing.assert_allclose(box.to_image(there)[0], [left, top, right, bottom], atol=tolerance)


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 5), (5, 5, 4)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not a BGR image"):
        yolo.letterbox(np.zeros(shape, dtype=np.uint8), width_px=64, height_px=64, preprocess=PREPROCESS)


def test_boxes_come_back_in_image_pixels_clipped_best_first() -> None:
    output = yolo_output((16, 32, 8, 8, (0.3, 0.0)), (60, 32, 16, 8, (0.0, 0.9)))
    box = yolo.Letterbox(128, 32, 0.5, 0.5, 0, 24)
    assert found(output, box=box) == [
        ("b", 0.9, Box(104.0, 8.0, 128.0, 24.0)),
        ("a", 0.3, Box(24.0, 8.0, 40.0, 24.0)),
    ]


def test_overlapping_boxes_are_suppressed_within_a_label_only() -> None:
    output = yolo_output(
        (20, 20, 20, 20, (0.8, 0.0)),
        (22, 20, 20, 20, (0.7, 0.0)),
        (21, 20, 20, 20, (0.0, 0.6)),
        (50, 50, 10, 10, (0.5, 0.0)),
    )
    assert [(label, score) for label, score, _ in found(output)] == [("a", 0.8), ("b", 0.6), ("a", 0.5)]


def test_overlap_of_exactly_the_limit_is_kept() -> None:
    boxes = np.array([[0, 0, 10, 10], [5, 0, 15, 10]], dtype=np.float64)  # a third in common
    classes = np.zeros(2, dtype=np.intp)
    assert yolo.suppress(boxes, classes, iou=50 / 150, limit=9) == [0, 1]
    assert yolo.suppress(boxes, classes, iou=0.33, limit=9) == [0]


def test_a_label_that_came_close_second_at_the_same_place_is_reported_too() -> None:
    output = yolo_output((20, 20, 20, 20, (0.41, 0.40)))
    assert [(label, score) for label, score, _ in found(output)] == [("a", 0.41), ("b", 0.4)]


def test_scores_below_the_minimum_and_boxes_in_the_bars_are_dropped_and_the_rest_is_capped() -> None:
    rows = [(4 + 6 * i, 32, 4, 4, (0.9 - i / 100, 0.04)) for i in range(8)]
    assert len(found(yolo_output(*rows))) == 8
    assert [score for _, score, _ in found(yolo_output(*rows), max_detections=2)] == [0.9, 0.89]
    assert found(yolo_output((4, 4, 4, 4, (0.9, 0.9))), box=yolo.Letterbox(128, 32, 0.5, 0.5, 0, 24)) == []


def test_the_grid_of_yolox_runs_row_by_row_finest_first() -> None:
    cells, strides = yolo.yolox_grid(64, 32)
    assert len(cells) == 32 + 8 + 2
    assert cells[9].tolist() == [1, 1]
    assert strides[[0, 31, 32, 40, 41], 0].tolist() == [8, 8, 16, 32, 32]


def test_raw_yolox_output_is_placed_by_cell_and_stride() -> None:
    output = np.zeros((64 + 16 + 4, 7), dtype=np.float32)
    output[64 + 5] = [0.5, 0.25, math.log(2), math.log(1.5), 0.5, 0.2, 0.8]  # stride 16, cell (1, 1)
    assert found(output, head=Head.YOLOX) == [
        ("b", 0.4, Box(8.0, 8.0, 40.0, 32.0)),
        ("a", 0.1, Box(8.0, 8.0, 40.0, 32.0)),
    ]


@pytest.mark.parametrize(
    ("head", "shape", "said"),
    [
        (Head.YOLO, (7, 8), r"\(7, 8\) per image, expected \(4 \+ 2 labels"),
        (Head.YOLO, (300, 6), r"\(300, 6\)"),
        (Head.YOLOX, (84, 8), r"\(84, 8\) per image, expected \(84 anchors for 64x64, 5 \+ 2 labels"),
        (Head.YOLOX, (85, 7), r"\(85, 7\)"),
    ],
)
def test_output_that_does_not_go_with_the_labels_names_both(head: Head, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(FatalError, match=said) as caught:
        found(np.zeros(shape, dtype=np.float32), head=head)
    assert caught.value.reason is Reason.BAD_MODEL


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.0, -2.0])
def test_scores_that_are_no_scores_mean_a_bad_model(bad: float) -> None:
    with pytest.raises(FatalError, match="not between 0 and 1") as caught:
        found(yolo_output((20, 20, 20, 20, (bad, 0.0))))
    assert caught.value.reason is Reason.BAD_MODEL


def test_a_seen_box_that_is_not_finite_means_a_bad_model_but_an_unseen_one_does_not_matter() -> None:
    assert found(yolo_output((math.nan, 20, math.inf, 20, (0.0, 0.0)))) == []
    with pytest.raises(FatalError, match="boxes that are NaN") as caught:
        found(yolo_output((math.nan, 20, 20, 20, (0.9, 0.0))))
    assert caught.value.reason is Reason.BAD_MODEL


def test_an_enormous_log_size_at_an_unseen_anchor_of_yolox_does_not_matter() -> None:
    output = np.zeros((84, 7), dtype=np.float32)
    output[3, 2] = 500.0
    assert found(output, head=Head.YOLOX) == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), limit=st.integers(1, 5))
def test_suppression_keeps_the_best_and_nothing_that_overlaps_it(seed: int, limit: int) -> None:
    random = np.random.default_rng(seed)
    low = random.uniform(0, 50, (30, 2))
    boxes = np.concatenate([low, low + random.uniform(1, 30, (30, 2))], axis=1)
    classes = random.integers(0, 2, 30).astype(np.intp)
    kept = yolo.suppress(boxes, classes, iou=0.3, limit=limit)
    assert kept[0] == 0
    assert kept == sorted(kept)
    assert len(kept) <= limit
    for n, i in enumerate(kept):
        assert all(classes[i] != classes[j] or _iou(boxes[i], boxes[j]) <= 0.3 for j in kept[:n])


def _iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    total = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(width * height / (total - width * height))


@given(width=st.integers(1, 3000), height=st.integers(1, 3000), side=st.sampled_from([320, 640]), corner=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_canvas_without_needless_padding_shows_the_image_as_large_and_in_as_few_strides_as_hold_it(
    width: int, height: int, side: int, corner: bool
) -> None:
    image = np.full((height, width, 3), 200, dtype=np.uint8)
    fit = dataclasses.replace(PREPROCESS, fit=Fit.LETTERBOX_CORNER if corner else Fit.LETTERBOX)
    canvas_width, canvas_height = yolo.canvas_px([image], width_px=side, height_px=side, stride_px=32)
    _, square = yolo.letterbox(image, width_px=side, height_px=side, preprocess=fit)
    canvas, box = yolo.letterbox(image, width_px=canvas_width, height_px=canvas_height, preprocess=fit)
    assert (box.scale_x, box.scale_y) == pytest.approx((square.scale_x, square.scale_y), rel=1e-9)
    assert canvas_width % 32 == canvas_height % 32 == 0
    assert canvas_width - width * box.scale_x < 33
    assert canvas_height - height * box.scale_y < 33
    assert max(canvas_width, canvas_height) == side
    assert (canvas == 200).all(axis=2).sum() >= 1


def test_one_canvas_holds_a_wide_and_a_tall_image() -> None:
    wide, tall = np.zeros((90, 160, 3), dtype=np.uint8), np.zeros((160, 90, 3), dtype=np.uint8)
    sides = {"width_px": 320, "height_px": 320, "stride_px": 32}
    assert yolo.canvas_px([wide], **sides) == (320, 192)
    assert yolo.canvas_px([tall], **sides) == (192, 320)
    assert yolo.canvas_px([wide, tall], **sides) == (320, 320)
