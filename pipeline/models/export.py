"""Detectors and classifiers of the Ultralytics kind → an ONNX file and its entry for the catalogue.

Ultralytics (AGPL-3.0, brings torch) is an extra for the machine where models are made: no worker needs it. It is
imported when asked for, told to download and install nothing of its own, and works in a folder of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort  # type: ignore[import-untyped]
import yaml

from pipeline.errors import FatalError, Reason, UserError
from pipeline.models.catalog import Head
from pipeline.models.runner import parse_names

EXTRA = "pip install 'videosieve[export]'"
_OFFLINE = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}
_OPSET = 17
_END2END_COLUMNS = 6
_INVERSE_255 = [1 / 255] * 3


@dataclass(frozen=True, slots=True)
class Exported:
    """Where the weights and their catalogue lie; `entry` is the model's fields in it."""

    name: str
    weights: Path
    catalogue: Path
    entry: Mapping[str, Any]


def export(model: str, name: str, folder: Path, *, input_px: int, labels: Sequence[str] = ()) -> Exported:
    """`model` is a file of weights (.pt) or of a network (.yaml: random weights), or a name that Ultralytics knows.

    An open-vocabulary model (YOLO-World, YOLOE) is given its `labels` for good; others have their own. The batch is
    free, the input float32. Raises UserError(BAD_SETTING) for what cannot be exported, FatalError(MISSING_DEPENDENCY)
    without the extra.
    """
    ultralytics = _ultralytics()
    with tempfile.TemporaryDirectory(prefix="videosieve-export-") as work, _inside(Path(work)):
        network = _opened(ultralytics, model, labels)
        try:
            made = network.export(
                format="onnx", imgsz=input_px, dynamic=True, simplify=False, opset=_OPSET, device="cpu", verbose=False
            )
        except (RuntimeError, ValueError, TypeError, ImportError, AssertionError, NotImplementedError) as error:
            raise UserError(Reason.BAD_SETTING, f"'{model}' cannot be exported: {_one_line(error)}") from error
        folder.mkdir(parents=True, exist_ok=True)
        weights = folder / f"{name}.onnx"
        shutil.move(str(Path(work) / made), weights)
    return described(weights, name, input_px=input_px)


def described(weights: Path, name: str, *, input_px: int, licence: str = "AGPL-3.0") -> Exported:
    """The catalogue entry of an exported ONNX file, read off its metadata and output, written beside it.

    Raises UserError(BAD_SETTING) for a file whose head is none that videosieve reads.
    """
    content = weights.read_bytes()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    metadata: dict[str, str] = session.get_modelmeta().custom_metadata_map
    outputs = session.get_outputs()
    head = _head(metadata, [output.shape for output in outputs], weights.name)
    entry: dict[str, Any] = {
        "head": head.value,
        "task": metadata.get("description", "Exported with Ultralytics"),
        "licence": licence,
        "licence_note": "Made with Ultralytics: whoever offers a service built on it may have to publish its source."
        if licence == "AGPL-3.0"
        else "",
        "file": weights.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "sources": [{"folder": "."}],
        "preprocess": {
            "input_px": input_px,
            "fit": "cover" if head is Head.CLASSIFIER else "letterbox",
            "colour": "RGB",
            "scale": list(_INVERSE_255),
        },
    }
    catalogue = weights.with_suffix(".yaml")
    catalogue.write_text(yaml.safe_dump({"models": {name: entry}}, sort_keys=False), encoding="utf-8")
    return Exported(name, weights, catalogue, entry)


def _head(metadata: Mapping[str, str], shapes: Sequence[Sequence[object]], file: str) -> Head:
    """By what the exporter wrote into the file: its task, its names, and whether it suppresses by itself."""
    try:
        labels = parse_names(metadata.get("names", ""))
    except ValueError as error:
        raise UserError(Reason.BAD_SETTING, f"{file} has no names of classes in its metadata: {error}") from error
    task, shape = metadata.get("task"), list(shapes[0])
    if len(shapes) == 1 and task == "classify":
        return Head.CLASSIFIER
    if len(shapes) == 1 and task == "detect" and len(shape) == 3:
        if shape[2] == _END2END_COLUMNS and metadata.get("end2end", str(shape[1] != 4 + len(labels))) == "True":
            return Head.END2END
        if shape[1] == 4 + len(labels) or not isinstance(shape[1], int):
            return Head.YOLO
    raise UserError(
        Reason.BAD_SETTING, f"{file}: outputs {shapes} of task '{task}' are no detector's or classifier's that is known"
    )


def _ultralytics() -> Any:
    os.environ.update({name: value for name, value in _OFFLINE.items() if name not in os.environ})
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module("ultralytics")
    except ImportError as error:
        raise FatalError(Reason.MISSING_DEPENDENCY, f"Ultralytics cannot be imported ({error}): {EXTRA}") from error


def _opened(ultralytics: Any, model: str, labels: Sequence[str]) -> Any:
    try:
        network = ultralytics.YOLO(model)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise UserError(Reason.BAD_SETTING, f"Ultralytics cannot open '{model}': {_one_line(error)}") from error
    if labels:
        if not hasattr(network, "set_classes"):
            raise UserError(Reason.BAD_SETTING, f"'{model}' is not open-vocabulary: its labels are its own")
        network.set_classes(list(labels))
    return network


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Ultralytics writes beside the model and into the working folder, and prints progress to stdout."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.chdir(before)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
