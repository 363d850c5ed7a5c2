"""What is made of an exported file. The export itself, which needs torch: `make test-export`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
import yaml
from numpy.typing import NDArray
from onnx import helper

from pipeline.errors import FatalError, Reason, UserError
from pipeline.media import BgrImage
from pipeline.models import export as exporting
from pipeline.models.export import Exported, described
from pipeline.models.pictures import pictures_in
from pipeline.models.precision import reduced
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from tests.clips import write_cuts
from tests.models import tiny

METADATA = {"names": "{0: 'helmet', 1: 'vest'}", "stride": "32", "task": "detect", "description": "A detector of ours"}


def convolved(channels: int, metadata: dict[str, str], *, folded: str = "yolo") -> bytes:
    """(N, 4+C, 4): a convolution of stride 16 over 32x32, as a detector of that shape; scores through a sigmoid."""
    random = np.random.default_rng(3)
    constants: dict[str, NDArray[np.generic]] = {
        "w": random.normal(0, 0.02, (channels, 3, 16, 16)).astype(np.float32),
        "boxes": np.array([4], np.int64),
        "rest": np.array([channels], np.int64),
        "zero": np.array([0], np.int64),
        "axis": np.array([1], np.int64),
        "shape": np.array([0, channels, 4], np.int64),
        "sixteen": np.array(16, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["in", "w"], ["c"], strides=[16, 16]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["flat"]),
        helper.make_node("Slice", ["flat", "zero", "boxes", "axis"], ["b"]),
        helper.make_node("Mul", ["b", "sixteen"], ["big"]),
        helper.make_node("Slice", ["flat", "boxes", "rest", "axis"], ["scores"]),
        helper.make_node("Concat", ["big", "scores"], ["out"], axis=1),
    ]
    return tiny.model(nodes, constants, inputs=["n", 3, 32, 32], outputs=["n", channels, 4], metadata=metadata)


@pytest.fixture
def made(tmp_path: Path) -> Exported:
    path = tmp_path / "helmets.onnx"
    path.write_bytes(convolved(6, METADATA))
    return described(path, "helmets", input_px=32, licence="LicenseRef-Ours")


def noise(count: int) -> list[BgrImage]:
    random = np.random.default_rng(5)
    return [random.integers(0, 255, (40, 64, 3), dtype=np.uint8) for _ in range(count)]


def test_an_exported_file_describes_itself_to_the_catalogue(made: Exported, tmp_path: Path) -> None:
    spec = Registry(tmp_path, extra_catalog=made.catalogue).spec("helmets")
    assert (spec.head, spec.licence, spec.preprocess.input_px) == ("yolo", "LicenseRef-Ours", 32)
    scorer = ModelStore(Registry(tmp_path, extra_catalog=made.catalogue), device="cpu").scorer("helmets")
    assert scorer.labels == ("helmet", "vest")
    assert len(scorer.score(noise(1)).findings) == 1


@pytest.mark.parametrize(
    ("shape", "metadata", "head"),
    [
        ((6, 8), METADATA, "yolo"),
        ((300, 6), METADATA | {"end2end": "True"}, "end2end"),
        ((300, 6), METADATA | {"args": "{'nms': True}"}, "end2end"),
        ((6, 6), METADATA, "yolo"),
        ((2,), METADATA | {"task": "classify"}, "classifier"),
    ],
)
def test_the_head_is_told_by_task_names_and_shape(
    tmp_path: Path, shape: tuple[int, ...], metadata: dict[str, str], head: str
) -> None:
    path = tmp_path / "any.onnx"
    path.write_bytes(tiny.says(np.zeros(shape, np.float32), metadata=metadata))
    assert described(path, "any", input_px=32).entry["head"] == head


@pytest.mark.parametrize(
    "metadata",
    [
        METADATA | {"task": "segment"},
        METADATA | {"end2end": "True"},
        {},
        METADATA | {"names": "{0: 'a', 1: 'b', 2: 'c'}"},
    ],
)
def test_a_file_that_is_no_known_head_is_refused(tmp_path: Path, metadata: dict[str, str]) -> None:
    path = tmp_path / "any.onnx"
    path.write_bytes(tiny.says(np.zeros((6, 8), np.float32), metadata=metadata))
    with pytest.raises(UserError) as caught:
        described(path, "any", input_px=32)
    assert caught.value.reason is Reason.BAD_SETTING


def test_a_detector_of_ones_own_is_one_catalogue_entry_and_one_policy_line(made: Exported, tmp_path: Path) -> None:
    """As in docs/models.md."""
    policy = {
        "schema_version": 2,
        "name": "site",
        "decision": {
            "models": {"helmets": made.entry["sha256"]},
            "questions": {"helmet": {"text": "Is a helmet to be seen?"}},
            "stages": [
                {
                    "name": "detector",
                    "model": "helmets",
                    "answers": {"helmet": {"labels": ["helmet"], "positive_at": 0.05, "negative_at": 0.01}},
                }
            ],
        },
        "commercial": {"owner": "site", "currency": "USD"},
    }
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(policy))
    clip = write_cuts(tmp_path / "clip.mp4")
    settings = {
        "VIDEOSIEVE_POLICY": str(tmp_path / "site.yaml"),
        "VIDEOSIEVE_MODELS__DIR": str(tmp_path),
        "VIDEOSIEVE_MODELS__EXTRA_CATALOG": str(made.catalogue),
    }
    done = subprocess.run(
        [sys.executable, "-m", "workers.cli", "analyze", str(clip), "--json"],
        env=os.environ | settings, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert (verdict["answer"], verdict["model"], verdict["stage"]) == ("positive", "helmets", "detector")
    assert verdict["weights_sha256"] == made.entry["sha256"]


@pytest.mark.parametrize(("precision", "allowed"), [("fp16", 0.01), ("int8", 0.2)])
def test_smaller_numbers_keep_the_entry_and_say_how_far_scores_moved(
    made: Exported, precision: str, allowed: float
) -> None:
    smaller, moved = reduced(made, precision, noise(6))  # type: ignore[arg-type]
    assert smaller.name == f"helmets-{precision}"
    assert moved.images == 3
    assert 0 < moved.largest < allowed
    assert moved.mean <= moved.largest
    same = ("head", "preprocess", "licence", "task")
    assert {key: smaller.entry[key] for key in same} == {key: made.entry[key] for key in same}
    kinds = {node.op_type for node in onnx.load(smaller.weights).graph.node}
    assert ("QuantizeLinear" in kinds) == (precision == "int8")


def test_drift_is_seen_where_there_is_some(made: Exported, tmp_path: Path) -> None:
    """Fitted to black images, INT8 is of no use on others: the check must say so."""
    _, fitted = reduced(made, "int8", noise(8))
    _, unfitted = reduced(made, "int8", [np.zeros((40, 64, 3), np.uint8)] * 4 + noise(4))
    assert unfitted.largest > 3 * fitted.largest
    assert unfitted.worst_label in {"helmet", "vest"}


def test_smaller_numbers_need_images(made: Exported) -> None:
    with pytest.raises(UserError, match="two at least"):
        reduced(made, "int8", noise(1))


def test_without_the_extra_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(FatalError, match=r"pip install 'videosieve\[export\]'") as caught:
        exporting.export("yolo11n.yaml", "own", tmp_path, input_px=32)
    assert caught.value.reason is Reason.MISSING_DEPENDENCY


def test_pictures_are_read_by_name_and_what_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no picture in"):
        pictures_in(tmp_path)
    for name, value in (("b.png", 9), ("a.jpg", 200)):
        _, data = cv2.imencode(Path(name).suffix, np.full((8, 12, 3), value, np.uint8))
        (tmp_path / name).write_bytes(data.tobytes())
    (tmp_path / "notes.txt").touch()
    assert [int(image[0, 0, 0]) for image in pictures_in(tmp_path)] == [200, 9]
    (tmp_path / "c.png").write_bytes(b"no")
    with pytest.raises(UserError, match=r"c\.png"):
        pictures_in(tmp_path)
