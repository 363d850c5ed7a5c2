"""Files pinned by SHA-256: what is written is right, whole and in place, or not there at all."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from pipeline.errors import FatalError, Reason

CHUNK_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in lower-case hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_pinned(path: Path, sha256: str) -> bool:
    """Whether `path` is a file with that content."""
    try:
        return sha256_of(path) == sha256
    except OSError:
        return False


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def write_pinned(chunks: Iterable[bytes], target: Path, *, sha256: str, max_bytes: int) -> None:
    """Write `chunks` to `target` in one atomic step, and only if they hash to `sha256`.

    Safe against other writers of the same target: each writes its own part file beside it. Raises
    FatalError(WEIGHTS_ALTERED) when the content is another or longer than `max_bytes`, FatalError(BAD_SETTING)
    when the folder cannot be written; errors of `chunks` pass through. Nothing is left behind in any case.
    """
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    digest, size = hashlib.sha256(), 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                for chunk in chunks:
                    size += len(chunk)
                    if size > max_bytes:
                        raise FatalError(Reason.WEIGHTS_ALTERED, f"longer than the expected {max_bytes} bytes")
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != sha256:
                raise FatalError(
                    Reason.WEIGHTS_ALTERED,
                    f"SHA-256 is {digest.hexdigest()} ({size} bytes), expected {sha256}",
                )
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FatalError(Reason.BAD_SETTING, f"cannot write {target}: {error}") from error
