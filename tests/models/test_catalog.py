from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import policies
from pipeline.errors import Reason, UserError
from pipeline.models.catalog import ColourOrder, FolderSource, Head, Interpolation, load_catalog
from tests.models import tiny


def test_the_shipped_catalogue_names_licence_and_source_of_every_model() -> None:
    specs = load_catalog()
    assert set(specs) == {"nudenet-320n", "open-nsfw", "yolox-nano"}
    assert all(spec.licence and spec.sources for spec in specs.values())
    assert "AGPL-3.0" in specs["nudenet-320n"].licence_note
    assert len(specs["yolox-nano"].labels) == 80
    assert specs["yolox-nano"].labels[79] == "toothbrush"
    assert specs["nudenet-320n"].labels == ()


def test_an_extra_catalogue_overrides_only_the_fields_it_gives(tmp_path: Path) -> None:
    path = tiny.catalogue(tmp_path, {"yolox-nano": {"size_bytes": 7, "sources": [{"folder": "weights"}]}})
    spec = load_catalog(path)["yolox-nano"]
    assert spec.size_bytes == 7
    assert spec.head is Head.YOLOX
    assert spec.sources == (FolderSource(tmp_path / "weights"),)


def test_an_extra_catalogue_adds_models(tmp_path: Path) -> None:
    path = tiny.catalogue(tmp_path, {"mine": tiny.fields(b"x", labels=["a"])})
    assert load_catalog(path)["mine"].labels == ("a",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "abc"}, "sha256"),
        ({"colour": "RGB"}, "colour"),
        ({"file": "../evil.onnx"}, "file"),
        ({"file": "yolox-nano.onnx"}, "share the file name"),
        ({"head": "classifier"}, "needs fit stretch or cover"),
        ({"min_score": 2}, "min_score"),
        ({"sources": [{"requirement": "numpy>=1", "member": "m"}]}, "sources"),
        ({"sources": [{"requirement": "--index-url==1", "member": "m"}]}, "sources"),
        ({"sources": [{"url": "file:///etc/passwd"}]}, "sources"),
        ({"preprocess": {"input_px": 64, "fit": "stretch", "colour": "BGR"}}, "needs fit letterbox"),
        ({"preprocess": {"input_px": 64, "fit": "letterbox", "colour": "BGR", "resize_px": 32}}, "resize_px"),
    ],
)
def test_a_mistake_in_an_extra_catalogue_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tiny.catalogue(tmp_path, {"mine": tiny.fields(b"x") | change})
    with pytest.raises(UserError, match=said) as caught:
        load_catalog(path)
    assert caught.value.reason is Reason.BAD_SETTING
    assert str(path) in caught.value.detail
    assert "mine" in caught.value.detail


@pytest.mark.parametrize("text", ["models: [", "- a", "models: {a: 1}", "models: {}\nmore: 1", "\0"])
def test_a_file_that_is_no_catalogue_is_the_users_mistake(tmp_path: Path, text: str) -> None:
    path = tmp_path / "extra.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"extra\.yaml"):
        load_catalog(path)


def test_a_missing_extra_catalogue_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_catalog(tmp_path / "none.yaml")


def test_a_reading_names_what_can_change_an_answer_and_nothing_else() -> None:
    spec = load_catalog()["nudenet-320n"]
    decisive: dict[str, Any] = {"nms_iou": 0.5, "min_score": 0.1, "max_detections": 9, "stride_px": 16, "logits": True}
    for field, value in decisive.items():
        assert replace(spec, **{field: value}).reading_sha256 != spec.reading_sha256
    for preprocess in (
        replace(spec.preprocess, input_px=640),
        replace(spec.preprocess, colour=ColourOrder.BGR),
        replace(spec.preprocess, interpolation=Interpolation.AREA),
    ):
        assert replace(spec, preprocess=preprocess).reading_sha256 != spec.reading_sha256
    other: dict[str, Any] = {"licence": "MIT", "task": "x", "file": "y.onnx", "sha256": "0" * 64, "licence_note": "n"}
    for field, text in other.items():
        assert replace(spec, **{field: text}).reading_sha256 == spec.reading_sha256


@pytest.mark.parametrize("name", policies.shipped())
def test_a_shipped_policy_pins_the_models_of_the_shipped_catalogue(name: str) -> None:
    catalogue = load_catalog()
    for model, pin in policies.load(name).decision.models.items():
        assert (pin.weights, pin.reading) == (catalogue[model].sha256, catalogue[model].reading_sha256)
