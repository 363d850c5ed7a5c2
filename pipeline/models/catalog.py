"""The catalogue: which models there are, where their weights come from, and what they expect and return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pipeline.canonical import digest
from pipeline.errors import Reason, UserError

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Pixels = Annotated[int, Field(ge=16, le=4096)]
Level = Annotated[int, Field(ge=0, le=255)]


class Head(StrEnum):
    """How the output is to be read."""

    YOLO = "yolo"
    END2END = "end2end"
    YOLOX = "yolox"
    CLASSIFIER = "classifier"


class Fit(StrEnum):
    """How an image is made to fit the model's input."""

    LETTERBOX = "letterbox"  # whole image, centred, padded
    LETTERBOX_CORNER = "letterbox_corner"  # whole image at the left top, padded
    STRETCH = "stretch"  # both sides to the size, whatever the aspect
    COVER = "cover"  # the shorter side to the size, the centre of the longer


class Layout(StrEnum):
    NCHW = "NCHW"
    NHWC = "NHWC"


class ColourOrder(StrEnum):
    RGB = "RGB"
    BGR = "BGR"


class Interpolation(StrEnum):
    LINEAR = "linear"
    AREA = "area"


@dataclass(frozen=True, slots=True)
class WheelSource:
    """One member of a pinned wheel on the package index."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    requirement: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+$")]
    member: str


@dataclass(frozen=True, slots=True)
class UrlSource:
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    url: Annotated[str, Field(pattern=r"^https?://")]


@dataclass(frozen=True, slots=True)
class S3Source:
    """An object, read with the credentials of the fleet's store."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    s3: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$")]

    @property
    def bucket(self) -> str:
        return self.s3.removeprefix("s3://").split("/", 1)[0]

    @property
    def key(self) -> str:
        return self.s3.removeprefix("s3://").split("/", 1)[1]


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder that holds the file, under the catalogue's name for it or as `member`."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    folder: Path
    member: PlainName | None = None


Source = WheelSource | UrlSource | S3Source | FolderSource


@dataclass(frozen=True, slots=True)
class Preprocess:
    """From an image to the model's input. `mean` and `scale` are per channel, in the order of `colour`."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    input_px: Pixels
    fit: Fit
    colour: ColourOrder
    layout: Layout = Layout.NCHW
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    pad: tuple[Level, Level, Level] = (114, 114, 114)
    """Letterbox colour, blue-green-red."""
    rect: bool = False
    """Detectors with a free input: no more padding than the stride asks for, so that less is computed."""
    interpolation: Interpolation = Interpolation.LINEAR
    resize_px: Pixels | None = None
    """Classifiers: resize to this first, then take the centre `input_px` of it."""
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] | None = None
    """Classifiers fitted to JPEG files: encode and decode once after resizing."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model. `labels` is empty where the model's own metadata names its classes."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: PlainName
    head: Head
    task: str
    licence: str
    file: PlainName
    sha256: Sha256
    size_bytes: Annotated[int, Field(gt=0)]
    sources: tuple[Source, ...]
    preprocess: Preprocess
    licence_note: str = ""
    labels: tuple[str, ...] = ()
    min_score: Share = 0.05
    nms_iou: Share = 0.45
    max_detections: Annotated[int, Field(ge=1, le=1000)] = 100
    stride_px: Annotated[int, Field(ge=1, le=256)] = 32
    """Detectors: the input's sides must be multiples of it; the model's metadata (`stride`) goes first."""
    logits: bool = False
    """Classifiers: the output still needs a softmax."""

    @property
    def reading_sha256(self) -> str:
        """Names everything here that can change an answer: preprocessing, head, labels, suppression.

        Fields at their default do not count, so that a new one leaves the hashes as they are.
        """
        read: dict[str, Any] = _SPEC.dump_python(self, mode="json", exclude_defaults=True, include=_READING)
        return digest(read)


_SPEC = TypeAdapter(ModelSpec)
_READING = {"head", "preprocess", "labels", "min_score", "nms_iou", "max_detections", "stride_px", "logits"}


def load_catalog(extra: Path | None = None) -> dict[str, ModelSpec]:
    """The shipped catalogue with `extra` merged over it, by name.

    Raises UserError(BAD_SETTING) that names the file, the model and the field where something is wrong.
    """
    shipped = resources.files("pipeline.models").joinpath("catalog.yaml").read_text(encoding="utf-8")
    entries = _entries(shipped, "catalog.yaml", folder=Path())
    if extra is not None:
        try:
            text = extra.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(Reason.BAD_SETTING, f"extra_catalog {extra} cannot be read: {error}") from error
        for name, fields in _entries(text, str(extra), folder=extra.parent).items():
            entries[name] = {**entries.get(name, {}), **fields}
    origin = "catalog.yaml" if extra is None else str(extra)
    specs = {name: _spec(name, fields, origin) for name, fields in entries.items()}
    _check_files_differ(specs, origin)
    return specs


def _entries(text: str, origin: str, *, folder: Path) -> dict[str, dict[str, Any]]:
    """Name → fields, as written; relative `folder` sources resolved against `folder`."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(Reason.BAD_SETTING, f"{origin} is not valid YAML: {_one_line(error)}") from error
    models = document.get("models") if isinstance(document, Mapping) else None
    if not isinstance(models, Mapping) or len(document) != 1:
        raise UserError(Reason.BAD_SETTING, f"{origin} must have the one key `models`, a mapping of names")
    entries: dict[str, dict[str, Any]] = {}
    for name, fields in models.items():
        if not isinstance(fields, Mapping):
            raise UserError(Reason.BAD_SETTING, f"{origin}: model '{name}' must be a mapping of fields")
        entries[str(name)] = {str(key): value for key, value in fields.items()}
        sources = entries[str(name)].get("sources")
        if isinstance(sources, list):
            entries[str(name)]["sources"] = [_resolved(source, folder) for source in sources]
    return entries


def _resolved(source: object, folder: Path) -> object:
    if isinstance(source, Mapping) and isinstance(source.get("folder"), str):
        return {**source, "folder": folder / source["folder"]}
    return source


def _spec(name: str, fields: Mapping[str, Any], origin: str) -> ModelSpec:
    try:
        spec = _SPEC.validate_python({**fields, "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(Reason.BAD_SETTING, f"{origin}: model '{name}', {where}: {first['msg']}") from error
    fit, boxes = spec.preprocess.fit, spec.head is not Head.CLASSIFIER
    if boxes != (fit in {Fit.LETTERBOX, Fit.LETTERBOX_CORNER}):
        wanted = "letterbox or letterbox_corner" if boxes else "stretch or cover"
        raise UserError(Reason.BAD_SETTING, f"{origin}: model '{name}': a {spec.head} needs fit {wanted}, not {fit}")
    resize_px = spec.preprocess.resize_px
    if resize_px is not None and resize_px < spec.preprocess.input_px:
        raise UserError(Reason.BAD_SETTING, f"{origin}: model '{name}': resize_px is less than input_px")
    return spec


def _check_files_differ(specs: Mapping[str, ModelSpec], origin: str) -> None:
    for file, count in Counter(spec.file for spec in specs.values()).items():
        if count > 1:
            names = ", ".join(name for name, spec in specs.items() if spec.file == file)
            raise UserError(Reason.BAD_SETTING, f"{origin}: {names} share the file name {file}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
