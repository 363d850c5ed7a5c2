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

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
import yaml

from pipeline.errors import FatalError, Reason, UserError
from pipeline.models.catalog import Head
from pipeline.models.onnx import RUNTIME_ERRORS
from pipeline.models.runner import parse_names

EXTRA = "pip install 'videosieve[export]'"
_OFFLINE = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}
_OPSET = 17
_END2END_COLUMNS, _BOX_ROWS = 6, 4
_INVERSE_255 = [1 / 255] * 3


@dataclass(frozen=True, slots=True)
class Exported:
    """Where the weights and their catalogue lie; `entry` is the model's fields in it."""

    name: str
    weights: Path
    catalogue: Path
    entry: Mapping[str, Any]


def export(
    model: str, name: str, folder: Path, *, input_px: int, labels: Sequence[str] = (), end2end: bool = False
) -> Exported:
    """`model` is a file of weights (.pt) or of a network (.yaml: random weights), or a name that Ultralytics knows.

    With `end2end` the head answers with which a network needs no suppression of overlaps (YOLOv10, YOLO26). An
    open-vocabulary model (YOLO-World, YOLOE) is given its `labels` for good; others have their own. The batch is free,
    the input float32. Raises UserError(BAD_SETTING) for what cannot be exported, FatalError(MISSING_DEPENDENCY) without
    the extra.
    """
    ultralytics = _ultralytics()
    with tempfile.TemporaryDirectory(prefix="videosieve-export-") as work, _inside(Path(work)):
        network = _opened(ultralytics, model, labels)
        if end2end and not hasattr(network.model.model[-1], "one2one_cv2"):
            raise UserError(Reason.BAD_SETTING, f"'{model}' has no end-to-end head: export it without")
        try:
            made = network.export(
                format="onnx",
                imgsz=input_px,
                dynamic=True,
                simplify=False,
                opset=_OPSET,
                device="cpu",
                verbose=False,
                **({"nms": False} if end2end else {}),  # what Ultralytics calls that head
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
    head = _head(metadata, _shapes(session, input_px), weights.name)
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


def _head(metadata: Mapping[str, str], shapes: Sequence[tuple[int, ...]], file: str) -> Head:
    """By what the exporter wrote into the file, its task and names, and by the shapes of its outputs for one image."""
    try:
        labels = parse_names(metadata.get("names", ""))
    except ValueError as error:
        raise UserError(Reason.BAD_SETTING, f"{file} has no names of classes in its metadata: {error}") from error
    suppresses = metadata.get("end2end") == "True" or "'nms': True" in metadata.get("args", "")
    match metadata.get("task"), shapes:
        case "classify", [(1, count)] if count == len(labels):
            return Head.CLASSIFIER
        case "detect", [(1, _, columns)] if columns == _END2END_COLUMNS and suppresses:
            return Head.END2END
        case "detect", [(1, rows, _)] if rows == _BOX_ROWS + len(labels) and not suppresses:
            return Head.YOLO
    told = f"outputs {shapes}, {len(labels)} labels, task '{metadata.get('task')}'"
    raise UserError(Reason.BAD_SETTING, f"{file}: {told}: neither a detector nor a classifier that is known")


def _shapes(session: Any, input_px: int) -> list[tuple[int, ...]]:
    """Of the outputs for one blank image: what a file says of its shapes is often a name."""
    (taken,) = session.get_inputs()
    blank = np.zeros((1, 3, input_px, input_px), np.float32)
    try:
        return [tuple(output.shape) for output in session.run(None, {taken.name: blank})]
    except RUNTIME_ERRORS as error:
        detail = f"it cannot judge a blank image of {input_px}x{input_px}: {_one_line(error)}"
        raise UserError(Reason.BAD_SETTING, detail) from error


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
