"""Loads models on first use and lets them judge images: the cascade's `Models` port."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.detections import Findings, Scored
from pipeline.errors import FatalError, Reason, TransientError, UserError
from pipeline.media import BgrImage
from pipeline.models import classifier, yolo
from pipeline.models.catalog import Head, Layout, ModelSpec
from pipeline.models.nonsense import NonsenseError
from pipeline.models.onnx import Device, Session, Where, prepare_cuda
from pipeline.models.registry import Registry
from pipeline.models.tensor import to_tensor

BATCH_SIZES: Mapping[Where, int] = {"cpu": 1, "cuda": 8, "tensorrt": 8}
"""Images at once, by device: on a CPU batching gains nothing."""
_ENGINES = "tensorrt"
_MAX_NAMES_CHARS = 200_000
_PX_RANGE = range(16, 4097)


@dataclass(frozen=True, slots=True)
class _Loaded:
    spec: ModelSpec
    session: Session
    labels: tuple[str, ...]
    stride_px: int


class ModelScorer:
    """One model at one input size. Threads may share it."""

    def __init__(self, loaded: _Loaded, *, width_px: int, height_px: int, batch_size: int | None = None) -> None:
        self._loaded = loaded
        self.is_tried = False
        self._width_px = width_px
        self._height_px = height_px
        fixed_batch = loaded.session.input_shape[0] is not None
        device = loaded.session.device
        self._batch_size = 1 if fixed_batch or device == "cpu" else batch_size or BATCH_SIZES[device]

    @property
    def weights_sha256(self) -> str:
        return self._loaded.spec.sha256

    @property
    def reading_sha256(self) -> str:
        return self._loaded.spec.reading_sha256

    @property
    def batch_size(self) -> int:
        """1 on a CPU, where batching gains nothing, and for models exported with a fixed batch."""
        return self._batch_size

    @property
    def labels(self) -> tuple[str, ...]:
        return self._loaded.labels

    @property
    def device(self) -> Where:
        """Where it really runs: `cpu`, `cuda` or `tensorrt`."""
        return self._loaded.session.device

    def score(self, images: Sequence[BgrImage]) -> Scored:
        """Judge any number of images of any sizes, in batches that the model accepts.

        `cpu_s` counts pre- and post-processing too; see `onnx.cpu_clock` for what it can see. `device_s` counts the
        time from handing a batch to an accelerator to its output, waiting for other threads' batches included. Raises
        TransientError(MODEL_UNAVAILABLE) when the device fails, FatalError(BAD_MODEL) when an output has another shape,
        or makes no sense before the model was tried; after that, an image whose output makes none is not readable.
        """
        clock = self._loaded.session.cpu_clock
        start = clock()
        found: list[Findings] = []
        device_s: list[float] = []
        for first in range(0, len(images), self._batch_size):
            found.extend(self._score_batch(images[first : first + self._batch_size], device_s))
        return Scored(tuple(found), cpu_s=clock() - start, device_s=sum(device_s))

    def tensors(self, images: Iterable[BgrImage]) -> Iterator[NDArray[np.float32]]:
        """What the model is given for each image, as a batch of one."""
        spec = self._loaded.spec
        for image in images:
            if spec.head is Head.CLASSIFIER:
                view = classifier.prepare(image, spec.preprocess, input_px=self._width_px)
            else:
                width_px, height_px = self._canvas_px([image])
                view, _ = yolo.letterbox(image, width_px=width_px, height_px=height_px, preprocess=spec.preprocess)
            yield to_tensor([view], spec.preprocess)

    def _score_batch(self, images: Sequence[BgrImage], device_s: list[float]) -> Iterator[Findings]:
        spec, labels = self._loaded.spec, self._loaded.labels
        if spec.head is Head.CLASSIFIER:
            views = [classifier.prepare(image, spec.preprocess, input_px=self._width_px) for image in images]
            for output in self._run(views, device_s):
                yield self._read(partial(classifier.findings, output, spec, labels))
            return
        width_px, height_px = self._canvas_px(images)
        boxed = [
            yolo.letterbox(image, width_px=width_px, height_px=height_px, preprocess=spec.preprocess)
            for image in images
        ]
        outputs = self._run([canvas for canvas, _ in boxed], device_s)
        for output, (_, box) in zip(outputs, boxed, strict=True):
            read = partial(yolo.findings, output, spec, labels, box, width_px=width_px, height_px=height_px)
            yield self._read(read)

    def _read(self, findings: Callable[[], Findings]) -> Findings:
        try:
            return findings()
        except NonsenseError:
            if not self.is_tried:
                raise
            return Findings((), is_readable=False)

    def _canvas_px(self, images: Sequence[BgrImage]) -> tuple[int, int]:
        """Width and height of a detector's input for these images."""
        width_px, height_px = self._width_px, self._height_px
        if not self._loaded.spec.preprocess.rect or self.device == "tensorrt":  # an engine is for one shape
            return width_px, height_px
        return yolo.canvas_px(images, width_px=width_px, height_px=height_px, stride_px=self._loaded.stride_px)

    def _run(self, views: Sequence[BgrImage], device_s: list[float]) -> NDArray[np.float32]:
        spec = self._loaded.spec
        missing = self._batch_size - len(views) if self.device == "tensorrt" else 0  # an engine is for one shape
        batch = to_tensor([*views, *[views[0]] * missing], spec.preprocess)
        started_s = time.perf_counter()
        output = self._loaded.session.run(batch)
        if self.device != "cpu":
            device_s.append(time.perf_counter() - started_s)
        if output.ndim == 0 or len(output) != len(batch):
            raise _bad(spec.name, f"its output has shape {output.shape} for a batch of {len(batch)}")
        return output[: len(views)]


class ModelStore:
    """Models by name, each loaded once and kept. Threads may share it."""

    def __init__(
        self, registry: Registry, *, device: Device = "auto", threads: int = 1, batch_size: int | None = None
    ) -> None:
        """`threads` is ONNX Runtime's intra-op threads per run; `batch_size` the images at once on an accelerator,
        None for BATCH_SIZES. Loads nothing."""
        self._batch_size = batch_size
        self._registry = registry
        self._device: Device = device
        self._threads = threads
        self._lock = threading.Lock()
        self._models: dict[str, _Loaded] = {}
        self._scorers: dict[tuple[str, int | None], ModelScorer] = {}
        prepare_cuda(device)

    def scorer(self, name: str, input_px: int | None = None) -> ModelScorer:
        """The model called `name`, loaded and tried on a blank image when first asked for.

        `input_px` is the side of the square input; None means the model's own. Raises UserError for an
        unknown name or a size that the model cannot take, FatalError when the weights are missing, altered or
        unusable or the device is not there.
        """
        key = (name, input_px)
        ready = self._scorers.get(key)
        if ready is not None:
            return ready
        with self._lock:
            if key not in self._scorers:
                loaded = self._load(name)
                width_px, height_px = _input_size(loaded, input_px)
                scorer = ModelScorer(loaded, width_px=width_px, height_px=height_px, batch_size=self._batch_size)
                _try_out(scorer, name)
                self._models[name] = loaded
                self._scorers[key] = scorer
            return self._scorers[key]

    def labels(self, name: str) -> tuple[str, ...]:
        """Every label that the model can give, in its own order. Loads the model; raises as `scorer` does."""
        return self.scorer(name).labels

    def loaded(self) -> tuple[str, ...]:
        """Names of the models in memory."""
        with self._lock:
            return tuple(sorted(self._models))

    def _load(self, name: str) -> _Loaded:
        if name in self._models:
            return self._models[name]
        spec = self._registry.spec(name)
        session = Session(
            self._registry.weights(name),
            name=name,
            device=self._device,
            threads=self._threads,
            engines_dir=self._registry.models_dir / _ENGINES,
        )
        labels = _labels(spec, session.metadata.get("names"))
        stride = session.metadata.get("stride", "")
        stride_px = int(stride) if stride.isdecimal() and 0 < int(stride) <= 256 else spec.stride_px
        return _Loaded(spec, session, labels, stride_px)


def parse_names(text: str) -> tuple[str, ...]:
    """The labels in Ultralytics' metadata, `{0: 'person', 1: …}` or a list. Raises ValueError."""
    if len(text) > _MAX_NAMES_CHARS:
        raise ValueError("too long")
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"not a Python literal: {error}") from error
    if isinstance(value, dict):
        if set(value) != set(range(len(value))):
            raise ValueError("the keys are not 0, 1, 2, …")
        value = [value[i] for i in range(len(value))]
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError("not a list of names")
    return tuple(value)


def _labels(spec: ModelSpec, names: str | None) -> tuple[str, ...]:
    if names is None:
        if not spec.labels:
            raise _bad(spec.name, "neither its metadata (`names`) nor the catalogue (`labels`) has labels")
        return spec.labels
    try:
        return parse_names(names)
    except ValueError as error:
        raise _bad(spec.name, f"its metadata `names` cannot be read: {error}") from error


def _input_size(loaded: _Loaded, input_px: int | None) -> tuple[int, int]:
    """Width and height of the input. A fixed model's own, else `input_px`, else the catalogue's."""
    spec, shape = loaded.spec, loaded.session.input_shape
    channels_at = 1 if spec.preprocess.layout is Layout.NCHW else 3
    if len(shape) != 4 or shape[0] not in {None, 1} or shape[channels_at] not in {None, 3}:
        wanted = "(1 or N, 3, H, W)" if channels_at == 1 else "(1 or N, H, W, 3)"
        raise _bad(spec.name, f"its input has shape {_shape(shape)}, expected {wanted}")
    height, width = (shape[2], shape[3]) if channels_at == 1 else (shape[1], shape[2])
    if input_px is not None and any(side not in {None, input_px} for side in (width, height)):
        raise UserError(
            Reason.BAD_SETTING,
            f"model '{spec.name}' was exported for {width}x{height}: input_px {input_px} is not possible",
        )
    if spec.preprocess.rect and (width or height or spec.head is Head.CLASSIFIER):
        raise UserError(
            Reason.BAD_SETTING,
            f"model '{spec.name}': `rect` is for detectors whose input is free in width and height: leave it out",
        )
    side = spec.preprocess.input_px if input_px is None else input_px
    width, height = width or side, height or side
    if spec.head is Head.CLASSIFIER:
        if width != height:
            raise _bad(spec.name, f"its input is {width}x{height}; a classifier's must be square")
        stride_px = 1
    else:
        stride_px = loaded.stride_px
    if any(px not in _PX_RANGE or px % stride_px for px in (width, height)):
        multiple = f", and a multiple of {stride_px}" if stride_px > 1 else ""
        raise UserError(
            Reason.BAD_SETTING,
            f"model '{spec.name}': input_px must be {_PX_RANGE.start} to {_PX_RANGE.stop - 1}{multiple}, "
            f"not {width}x{height}",
        )
    return width, height


def _try_out(scorer: ModelScorer, name: str) -> None:
    """A batch of blank images: a model that cannot work fails when it is loaded, not on somebody's video, and what
    an accelerator chooses, builds and allocates for its first batch is there when that comes."""
    try:
        scorer.score([np.zeros((64, 64, 3), dtype=np.uint8)] * scorer.batch_size)
        scorer.is_tried = True
    except TransientError as error:
        if scorer.device == "cpu":
            raise _bad(name, f"it cannot judge a blank image: {error.detail}") from error
        raise


def _shape(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"


def _bad(name: str, what: str) -> FatalError:
    return FatalError(Reason.BAD_MODEL, f"model '{name}': {what}")
