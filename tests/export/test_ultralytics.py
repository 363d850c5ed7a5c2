"""Real exports by Ultralytics, offline, from networks with random weights: `make test-export`.

`VIDEOSIEVE_TEST_EXPORT=1` promises that the extra `export` is installed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
import yaml

from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from tests.clips import write_cuts
from workers.cli import main

pytestmark = [
    pytest.mark.skipif("VIDEOSIEVE_TEST_EXPORT" not in os.environ, reason="VIDEOSIEVE_TEST_EXPORT promises no extra"),
    pytest.mark.filterwarnings("default"),  # torch's own
]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    random = np.random.default_rng(1)
    for number in range(4):
        small = random.integers(0, 255, (9, 16, 3), dtype=np.uint8)
        _, data = cv2.imencode(".jpg", cv2.resize(small, (320, 180), interpolation=cv2.INTER_CUBIC))
        (folder / f"{number}.jpg").write_bytes(data.tobytes())
    return folder


@pytest.mark.parametrize(
    ("network", "more", "head", "labels"),
    [
        ("yolo11n.yaml", [], "yolo", 80),
        ("yolov8n.yaml", [], "yolo", 80),
        ("yolov10n.yaml", [], "yolo", 80),
        ("yolov10n.yaml", ["--end2end"], "end2end", 80),
        ("yolo26n.yaml", ["--end2end"], "end2end", 80),
        ("yolo11n-cls.yaml", [], "classifier", 1000),
    ],
)
def test_a_network_becomes_a_model_that_the_catalogue_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], network: str, more: list[str], head: str, labels: int
) -> None:
    command = ["models", "export", network, "--name", "own", "--out", str(tmp_path), "--input-px", "64"]
    assert main([*command, *more]) == 0
    assert "licence AGPL-3.0" in capsys.readouterr().err
    entry = yaml.safe_load((tmp_path / "own.yaml").read_text())["models"]["own"]
    assert entry["head"] == head
    session = ort.InferenceSession(str(tmp_path / "own.onnx"), providers=["CPUExecutionProvider"])
    assert isinstance(session.get_inputs()[0].shape[0], str)  # a free batch
    assert {"names", "stride", "imgsz", "task"} <= set(session.get_modelmeta().custom_metadata_map)
    models = ModelStore(Registry(tmp_path, extra_catalog=tmp_path / "own.yaml"), device="cpu")
    scorer = models.scorer("own", 96 if head != "classifier" else None)  # free sizes too
    assert len(scorer.labels) == labels
    assert len(scorer.score([np.full((90, 160, 3), 99, np.uint8)] * 3).findings) == 3


def test_an_exported_detector_decides_a_video(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["models", "export", "yolo11n.yaml", "--name", "own", "--out", str(tmp_path), "--input-px", "320"]) == 0
    entry = yaml.safe_load((tmp_path / "own.yaml").read_text())["models"]["own"]
    (tmp_path / "site.yaml").write_text(
        f"""
schema_version: 2
name: site
decision:
  models: {{own: {entry["sha256"]}}}
  questions: {{person: {{text: "Is a person to be seen?"}}}}
  stages:
    - name: detector
      model: own
      answers: {{person: {{labels: ["0"], positive_at: 0.9, negative_at: 0.5}}}}
commercial: {{owner: site, currency: USD}}
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIDEOSIEVE_POLICY", str(tmp_path / "site.yaml"))
    monkeypatch.setenv("VIDEOSIEVE_MODELS__DIR", str(tmp_path))
    monkeypatch.setenv("VIDEOSIEVE_MODELS__EXTRA_CATALOG", str(tmp_path / "own.yaml"))
    capsys.readouterr()
    assert main(["analyze", str(write_cuts(tmp_path / "clip.mp4")), "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["answer"], verdict["model"]) == ("negative", "own")  # random weights are sure of nothing


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_smaller_numbers_come_with_how_far_scores_moved(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    command = ["models", "export", "yolo11n.yaml", "--name", "own", "--out", str(tmp_path), "--input-px", "320"]
    assert main([*command, "--precision", precision, "--images", str(images)]) == 0
    assert f"own-{precision}: over 2 images scores moved by" in capsys.readouterr().out
    smaller = (tmp_path / f"own-{precision}.onnx").stat().st_size
    assert smaller < 0.6 * (tmp_path / "own.onnx").stat().st_size


def test_a_network_without_an_end_to_end_head_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "export", "yolov8n.yaml", "--end2end", "--out", str(tmp_path)]) == 2
    assert "no end-to-end head" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_name_without_weights_here_is_refused_not_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "export", "no-such-model.pt", "--out", str(tmp_path)]) == 2
    assert "no-such-model.pt" in capsys.readouterr().err
