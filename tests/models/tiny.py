"""Tiny ONNX models and wheels, built on the spot."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, NDArray[np.generic]],
    *,
    inputs: Sequence[int | str],
    outputs: Sequence[int | str],
    metadata: Mapping[str, str] | None = None,
    input_type: int = TensorProto.FLOAT,
) -> bytes:
    """A graph from `in` to `out`; sizes given as text are free."""
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info("in", input_type, list(inputs))],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, list(outputs))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    helper.set_model_props(made, dict(metadata or {}))
    return bytes(made.SerializeToString())


def says(
    output: NDArray[np.float32],
    *,
    batch: int | str = "n",
    height: int | str = "h",
    width: int | str = "w",
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """An NCHW model that answers `output` to each image, whatever it shows."""
    constants: dict[str, NDArray[np.generic]] = {
        "zero": np.zeros(1, dtype=np.float32),
        "shape": np.array([-1] + [1] * output.ndim, dtype=np.int64),
        "answer": output[np.newaxis],
    }
    nodes = [
        helper.make_node("ReduceMax", ["in"], ["top"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["top", "zero"], ["nought"]),
        helper.make_node("Reshape", ["nought", "shape"], ["spread"]),
        helper.make_node("Add", ["spread", "answer"], ["out"]),
    ]
    return model(
        nodes,
        constants,
        inputs=[batch, 3, height, width],
        outputs=[batch, *output.shape],
        metadata=metadata,
    )


def channel_means(*, layout: str = "NHWC", side: int | str = 32, batch: int | str = "n") -> bytes:
    """A classifier whose three outputs are the means of its input's channels."""
    axes, inputs = ([1, 2], [batch, side, side, 3]) if layout == "NHWC" else ([2, 3], [batch, 3, side, side])
    node = helper.make_node("ReduceMean", ["in"], ["out"], axes=axes, keepdims=0)
    return model([node], {}, inputs=inputs, outputs=[batch, 3])


def yolo_output(*rows: tuple[float, float, float, float, Sequence[float]], anchors: int = 8) -> NDArray[np.float32]:
    """(4+C, anchors) with the given centre x, centre y, width, height, scores; the other anchors are empty."""
    output = np.zeros((4 + len(rows[0][4]), anchors), dtype=np.float32)
    for i, (x, y, width, height, scores) in enumerate(rows):
        output[:, i] = [x, y, width, height, *scores]
    return output


def catalogue(folder: Path, models: Mapping[str, Mapping[str, object]]) -> Path:
    path = folder / "extra.yaml"
    path.write_text(yaml.safe_dump({"models": {name: dict(fields) for name, fields in models.items()}}))
    return path


def fields(weights: bytes, *, head: str = "yolo", **more: object) -> dict[str, object]:
    """A catalogue entry for `weights`; `input_px` and other preprocessing fields go into `preprocess`."""
    preprocess: dict[str, object] = {
        "input_px": 32,
        "fit": "stretch" if head == "classifier" else "letterbox",
        "colour": "BGR",
    }
    preprocess.update(more.pop("preprocess", {}))  # type: ignore[call-overload]
    return {
        "head": head,
        "task": "for tests",
        "licence": "CC0-1.0",
        "file": "tiny.onnx",
        "sha256": hashlib.sha256(weights).hexdigest(),
        "size_bytes": len(weights),
        "sources": [],
        "preprocess": preprocess,
        **more,
    }


def wheel(folder: Path, name: str, version: str, members: Mapping[str, bytes]) -> Path:
    """A pure-Python wheel with these members, good enough for `pip download`."""
    info = f"{name}-{version}.dist-info"
    files = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path
