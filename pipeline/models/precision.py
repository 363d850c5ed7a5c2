"""Smaller numbers: FP16 and INT8 versions of an ONNX file, and how far their answers moved.

Both keep float32 inputs and outputs, so that the catalogue entry stays as it is but for file and hash. INT8 quantises
convolutions and matrix products only, per channel, with ranges taken from given images: a detector's last layers
mix pixels and scores in one tensor, which one scale cannot serve.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FatalError, Reason, UserError
from pipeline.media import BgrImage
from pipeline.models.export import EXTRA, Exported, described
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelScorer, ModelStore

Precision = Literal["fp32", "fp16", "int8"]
_QUANTISED = ["Conv", "MatMul", "Gemm"]


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the scores of labels (each the best in its image, 0 where none is seen) moved between two models.

    `worst_image` and `worst_label` say where they moved most.
    """

    images: int
    largest: float
    mean: float
    worst_image: int
    worst_label: str


def reduced(made: Exported, precision: Literal["fp16", "int8"], images: Sequence[BgrImage]) -> tuple[Exported, Drift]:
    """The same model in smaller numbers, beside it and with a catalogue of its own; and how far `images` moved.

    INT8 takes its ranges from the first half of the images and is judged on the second, for a model agrees best with
    what it was fitted to. Raises UserError(BAD_SETTING) with fewer than two images.
    """
    if len(images) < 2:
        raise UserError(Reason.BAD_SETTING, f"{precision} is checked on images: give two at least, better a hundred")
    name = f"{made.name}-{precision}"
    target = made.weights.with_name(f"{name}.onnx")
    before = _scorer(made)
    half = len(images) // 2
    if precision == "fp16":
        to_fp16(made.weights, target)
    else:
        to_int8(made.weights, target, before.tensors(images[:half]))
    _keep_metadata(made.weights, target)
    after = described(target, name, input_px=made.entry["preprocess"]["input_px"], licence=made.entry["licence"])
    return after, drift(before, _scorer(after), images[half:])


def _scorer(made: Exported) -> ModelScorer:
    registry = Registry(made.weights.parent, extra_catalog=made.catalogue)
    return ModelStore(registry, device="cpu").scorer(made.name)


def _keep_metadata(source: Path, target: Path) -> None:
    onnx = _tool("onnx")
    model = onnx.load(target)
    metadata = {one.key: one.value for one in onnx.load(source).metadata_props}
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, target)


def drift(before: ModelScorer, after: ModelScorer, images: Sequence[BgrImage]) -> Drift:
    """Over the labels that either saw in an image. Raises ValueError without images or with other labels."""
    if not images or tuple(before.labels) != tuple(after.labels):
        raise ValueError("drift needs images, and two models with the same labels")
    moved: list[tuple[float, int, str]] = []
    for number, (old, new) in enumerate(zip(before.score(images).findings, after.score(images).findings, strict=True)):
        if not (old.is_readable and new.is_readable):
            moved.append((1.0, number, "(numbers that make no sense)"))
        else:
            seen = {one.label for one in (*old.detections, *new.detections)}
            moved += [(abs(old.score([label]) - new.score([label])), number, label) for label in sorted(seen)]
    largest, worst_image, worst_label = max(moved, default=(0.0, 0, ""))
    mean = float(np.mean([one[0] for one in moved])) if moved else 0.0
    return Drift(len(images), largest, mean, worst_image, worst_label)


def to_fp16(source: Path, target: Path) -> None:
    """Halves the file. It gains time on GPUs only. Raises FatalError(MISSING_DEPENDENCY) without the extra."""
    onnx, float16 = _tool("onnx"), _tool("onnxruntime.transformers.float16")
    model = onnx.load(source)
    onnx.save(float16.convert_float_to_float16(model, keep_io_types=True), target)


def to_int8(source: Path, target: Path, batches: Iterable[NDArray[np.float32]]) -> None:
    """`batches` are inputs as the model takes them, of pictures like those it will see; one for each run.

    Raises FatalError(MISSING_DEPENDENCY) without the extra.
    """
    quantization = _tool("onnxruntime.quantization")
    shape_inference = _tool("onnxruntime.quantization.shape_inference")
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        shape_inference.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(target),
            _reader(quantization, prepared, batches),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=_QUANTISED,
            per_channel=True,
        )


def _reader(quantization: Any, model: Path, batches: Iterable[NDArray[np.float32]]) -> Any:
    """ONNX Runtime's calibration reader, which must be of its own class."""
    inputs: Iterator[NDArray[np.float32]] = iter(batches)
    name = _tool("onnx").load(model, load_external_data=False).graph.input[0].name

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            batch = next(inputs, None)
            return None if batch is None else {name: batch}

    return Reader()


def _tool(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise FatalError(Reason.MISSING_DEPENDENCY, f"{module} cannot be imported ({error}): {EXTRA}") from error
