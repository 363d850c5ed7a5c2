from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from pipeline.cascade.ports import Models
from pipeline.detections import Box
from pipeline.errors import FatalError, Reason, UserError
from pipeline.models.onnx import Device, Session, Where
from pipeline.models.registry import Registry
from pipeline.models.runner import BATCH_SIZES, ModelStore, parse_names
from tests.models import tiny

IMAGE = np.zeros((32, 64, 3), dtype=np.uint8)
NAMES = {"names": "{0: 'cat', 1: 'dog'}", "stride": "32"}
DETECTOR = tiny.says(tiny.yolo_output((16, 16, 8, 8, (0.9, 0.0))), metadata=NAMES)


def store(tmp_path: Path, weights: bytes, **fields: object) -> ModelStore:
    catalogue = tiny.catalogue(tmp_path, {"tiny": tiny.fields(weights, **fields)})  # type: ignore[arg-type]
    (tmp_path / "models").mkdir(exist_ok=True)
    (tmp_path / "models" / "tiny.onnx").write_bytes(weights)
    return ModelStore(Registry(tmp_path / "models", extra_catalog=catalogue), device="cpu")


def test_a_detector_is_loaded_on_first_use_and_kept(tmp_path: Path) -> None:
    models = store(tmp_path, DETECTOR)
    port: Models = models
    assert models.loaded() == ()
    scorer = port.scorer("tiny")
    assert port.scorer("tiny") is scorer
    assert models.loaded() == ("tiny",)
    assert models.labels("tiny") == ("cat", "dog")
    assert scorer.batch_size == 1
    scored = scorer.score([IMAGE, IMAGE[:16]])
    assert [finding.score(["cat"]) for finding in scored.findings] == pytest.approx([0.9, 0.9])
    assert scored.findings[0].detections[0].box == Box(24.0, 8.0, 40.0, 24.0)
    assert scored.cpu_s > 0
    assert scorer.score([]).findings == ()


def test_many_threads_asking_at_once_load_a_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()
    real = Session

    def counting(weights: bytes, *, name: str, device: Device, threads: int, engines_dir: Path) -> Session:
        opened.append(name)
        return real(weights, name=name, device=device, threads=threads, engines_dir=engines_dir)

    monkeypatch.setattr("pipeline.models.runner.Session", counting)
    models = store(tmp_path, DETECTOR)
    with ThreadPoolExecutor(6) as pool:
        scorers = list(pool.map(lambda px: models.scorer("tiny", px), [None, 64, None, 64, 32, None]))
    assert opened == ["tiny"]
    assert len({id(scorer) for scorer in scorers}) == 3


def test_a_classifier_sees_the_channels_in_its_order_with_mean_and_scale(tmp_path: Path) -> None:
    image = np.empty((20, 50, 3), dtype=np.uint8)
    image[:] = (20, 120, 220)
    for layout in ("NHWC", "NCHW"):
        models = store(
            tmp_path,
            tiny.channel_means(layout=layout),
            head="classifier",
            labels=["red", "green", "blue"],
            preprocess={
                "layout": layout,
                "colour": "RGB",
                "mean": [-30.0, -20.0, -10.0],
                "scale": [0.002, 0.005, 0.01],
            },
        )
        (finding,) = models.scorer("tiny").score([image]).findings
        assert [(one.label, round(one.score, 4)) for one in finding.detections] == [
            ("green", 0.7),
            ("red", 0.5),
            ("blue", 0.3),
        ]


def test_a_model_with_a_fixed_batch_of_one_judges_images_one_by_one(tmp_path: Path) -> None:
    output = np.zeros((21, 7), dtype=np.float32)
    output[20] = [0.5, 0.5, 0.0, 0.0, 1.0, 0.0, 0.7]
    weights = tiny.says(output, batch=1, height=32, width=32)
    scorer = store(tmp_path, weights, head="yolox", labels=["cat", "dog"]).scorer("tiny")
    scored = scorer.score([IMAGE] * 3)
    assert [finding.score(["dog"]) for finding in scored.findings] == pytest.approx([0.7] * 3)


RECT = {"input_px": 64, "fit": "letterbox", "colour": "RGB", "rect": True}


@pytest.mark.parametrize(
    ("device", "shapes"), [("cpu", [(32, 64), (64, 32)]), ("cuda", [(64, 64)]), ("tensorrt", [(64, 64)])]
)
def test_a_free_input_is_padded_no_more_than_the_stride_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Where, shapes: list[tuple[int, int]]
) -> None:
    seen = list[tuple[int, ...]]()
    monkeypatch.setattr("pipeline.models.runner.Session", pretending(device, [], seen))
    scorer = store(tmp_path, DETECTOR, preprocess=RECT).scorer("tiny")
    seen.clear()
    wide, tall = scorer.score([IMAGE, IMAGE.transpose(1, 0, 2)]).findings
    assert seen == shapes
    assert wide.score(["cat"]) == tall.score(["cat"]) == pytest.approx(0.9)


@pytest.mark.parametrize(
    "weights", [tiny.says(tiny.yolo_output((16, 16, 8, 8, (0.9, 0.0))), height=64, metadata=NAMES)]
)
def test_an_input_that_is_not_free_cannot_be_trimmed(tmp_path: Path, weights: bytes) -> None:
    with pytest.raises(UserError, match="free in width and height"):
        store(tmp_path, weights, preprocess=RECT).scorer("tiny")


def pretending(device: Where, sizes: list[int], shapes: list[tuple[int, ...]] | None = None) -> type[Session]:
    """A session that runs on the CPU and says otherwise."""

    class Pretending(Session):
        def __init__(self, weights: bytes, *, name: str, threads: int, **_: object) -> None:
            super().__init__(weights, name=name, device="cpu", threads=threads)
            self.device = device

        def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
            sizes.append(len(batch))
            if shapes is not None:
                shapes.append(batch.shape[2:])
            return super().run(batch)

    return Pretending


@pytest.mark.parametrize(("device", "ran"), [("cpu", [1] * 11), ("cuda", [8, 3]), ("tensorrt", [8, 8])])
def test_images_go_in_batches_that_suit_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Where, ran: list[int]
) -> None:
    sizes = list[int]()
    monkeypatch.setattr("pipeline.models.runner.Session", pretending(device, sizes))
    scorer = store(tmp_path, DETECTOR).scorer("tiny")
    assert scorer.batch_size == BATCH_SIZES[device]
    assert sizes == [scorer.batch_size]  # warmed up with the batch that it will get
    sizes.clear()
    scored = scorer.score([IMAGE] * 11)
    assert [found.score(["cat"]) for found in scored.findings] == pytest.approx([0.9] * 11)
    assert sizes == ran
    assert (scored.device_s > 0) == (device != "cpu")


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_set_batch_size_is_used_and_a_fixed_one_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Where
) -> None:
    monkeypatch.setattr("pipeline.models.runner.Session", pretending(device, []))
    store(tmp_path, DETECTOR)
    registry = Registry(tmp_path / "models", extra_catalog=tmp_path / "extra.yaml")
    assert ModelStore(registry, batch_size=32).scorer("tiny").batch_size == 32
    fixed = tiny.says(tiny.yolo_output((16, 16, 8, 8, (0.9, 0.0))), batch=1, metadata=NAMES)
    assert store(tmp_path, fixed).scorer("tiny").batch_size == 1


@pytest.mark.parametrize(
    ("weights", "input_px", "said"),
    [
        (DETECTOR, 48, "a multiple of 32, not 48x48"),
        (DETECTOR, 0, "must be 16 to 4096"),
        (DETECTOR, 8192, "must be 16 to 4096"),
        (tiny.says(tiny.yolo_output((1, 1, 1, 1, (0, 0))), height=64, width=32, metadata=NAMES), 64, "32x64"),
    ],
)
def test_a_size_that_the_model_cannot_take_is_the_users_mistake(
    tmp_path: Path, weights: bytes, input_px: int, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        store(tmp_path, weights).scorer("tiny", input_px)


def test_an_end_to_end_model_has_suppressed_already(tmp_path: Path) -> None:
    output = np.zeros((5, 6), dtype=np.float32)
    output[1] = [8, 8, 24, 24, 0.6, 0]
    output[2] = [9, 8, 25, 24, 0.8, 0]
    weights = tiny.says(output, metadata=NAMES)
    (found,) = store(tmp_path, weights, head="end2end").scorer("tiny").score([IMAGE]).findings
    assert [(one.label, round(one.score, 2), one.box) for one in found.detections] == [
        ("cat", 0.8, Box(18.0, 0.0, 50.0, 32.0)),
        ("cat", 0.6, Box(16.0, 0.0, 48.0, 32.0)),
    ]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [(4, np.nan, "scores"), (4, 7.0, "scores"), (5, 2.0, "labels"), (5, 0.5, "labels"), (0, np.inf, "infinite")],
)
def test_an_end_to_end_model_that_makes_no_sense_is_refused(
    tmp_path: Path, column: int, value: float, said: str
) -> None:
    output = np.array([[8, 8, 24, 24, 0.6, 0]], dtype=np.float32)
    output[0, column] = value
    with pytest.raises(FatalError, match=said):
        store(tmp_path, tiny.says(output, metadata=NAMES), head="end2end").scorer("tiny")


def test_a_picture_on_which_a_model_makes_no_sense_is_not_readable_and_stops_nobody(tmp_path: Path) -> None:
    """As a picture does that overflows 16-bit floats: nothing is known about it, which is not that nothing is there."""
    roots = [
        helper.make_node("ReduceMean", ["in"], ["means"], axes=[1, 2], keepdims=0),
        helper.make_node("Sub", ["half", "means"], ["rest"]),
        helper.make_node("Sqrt", ["rest"], ["out"]),  # NaN for what is brighter than the half
    ]
    half = {"half": np.full(3, 0.5, np.float32)}
    weights = tiny.model(roots, half, inputs=["n", "h", "w", 3], outputs=["n", 3])
    how = {"layout": "NHWC", "scale": [1 / 255] * 3}
    scorer = store(tmp_path, weights, head="classifier", labels=["b", "g", "r"], preprocess=how).scorer("tiny")
    dark, bright = scorer.score([IMAGE, np.full((32, 64, 3), 255, np.uint8)]).findings
    assert dark.is_readable
    assert dark.score(["b"]) == pytest.approx(0.5**0.5)
    assert not bright.is_readable
    assert np.isnan(bright.score(["b"]))


def test_labels_come_from_the_metadata_before_the_catalogue(tmp_path: Path) -> None:
    assert store(tmp_path, DETECTOR, labels=["x", "y"]).labels("tiny") == ("cat", "dog")
    plain = tiny.says(tiny.yolo_output((1, 1, 1, 1, (0, 0))))
    assert store(tmp_path, plain, labels=["x", "y"]).labels("tiny") == ("x", "y")
    with pytest.raises(FatalError, match="has labels") as caught:
        store(tmp_path, plain).labels("tiny")
    assert caught.value.reason is Reason.BAD_MODEL


def bad_models() -> Mapping[str, bytes]:
    box = tiny.yolo_output((16, 16, 8, 8, (0.9, 0.0)))
    square = helper.make_node("Reshape", ["in", "shape"], ["out"])
    return {
        "three labels": tiny.says(box, metadata={"names": "['a', 'b', 'c']"}),
        "garbled names": tiny.says(box, metadata={"names": "__import__('os')"}),
        "channels last": tiny.channel_means(layout="NHWC"),
        "batch of four": tiny.says(box, batch=4, metadata=NAMES),
        "NaN": tiny.says(box * np.float32("nan"), metadata=NAMES),
        "impossible": tiny.model(
            [square], {"shape": np.array([7, 7], np.int64)}, inputs=["n", 3, "h", "w"], outputs=[7, 7]
        ),
        "folded batch": tiny.model(
            [square], {"shape": np.array([-1, 4], np.int64)}, inputs=["n", 3, "h", "w"], outputs=["m", 4]
        ),
    }


@pytest.mark.parametrize("what", bad_models())
def test_a_model_that_cannot_work_fails_when_it_is_loaded(tmp_path: Path, what: str) -> None:
    models = store(tmp_path, bad_models()[what], labels=["a", "b"])
    with pytest.raises(FatalError, match="'tiny'") as caught:
        models.scorer("tiny")
    assert caught.value.reason is Reason.BAD_MODEL
    assert models.loaded() == ()


def test_missing_and_unknown_models_fail_as_the_registry_says(tmp_path: Path) -> None:
    models = store(tmp_path, DETECTOR)
    (tmp_path / "models" / "tiny.onnx").unlink()
    with pytest.raises(FatalError) as caught:
        models.scorer("tiny")
    assert caught.value.reason is Reason.WEIGHTS_MISSING
    with pytest.raises(UserError):
        models.scorer("tinny")


@pytest.mark.parametrize("text", ["{0: 'a', 1: 'b'}", "['a', 'b']", "('a', 'b')"])
def test_names_are_read_from_dicts_and_lists(text: str) -> None:
    assert parse_names(text) == ("a", "b")


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "{1: 'a'}", "[1]", "{0: 1}", "open('x')", "(" * 5000, "[" * 300_000, "{[]: 1}", "'a'"],
)
def test_names_that_are_no_list_of_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_names(text)
