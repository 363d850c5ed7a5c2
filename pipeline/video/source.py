"""Sources: where a video's bytes come from, as ranged reads.

A local file is implemented here; an object in S3 implements the same Protocol in `pipeline.stores`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from pipeline.errors import PermanentError, Reason, TransientError

READ_GAP_BYTES = 32 * 1024
"""Ranges closer than this are read as one: a request costs as much as reading some tens of kilobytes more."""


class ByteRange(NamedTuple):
    """The half-open range of bytes [offset_bytes, offset_bytes + length_bytes)."""

    offset_bytes: int
    length_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.length_bytes


class Source(Protocol):
    """One video's bytes. Implementations raise only errors of `pipeline.errors`."""

    @property
    def name(self) -> str:
        """What people call it: a path or an s3:// URL, never a signed URL."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """The bytes of each range, in order; what lies past the end of the file is left out."""
        ...


def coalesce(ranges: Sequence[ByteRange], gap_bytes: int = READ_GAP_BYTES) -> list[ByteRange]:
    """The fewest ranges, in file order, that cover `ranges` when gaps of at most `gap_bytes` are read too."""
    merged: list[ByteRange] = []
    for wanted in sorted(ranges):
        if merged and wanted.offset_bytes - merged[-1].end_bytes <= gap_bytes:
            last = merged[-1]
            end_bytes = max(last.end_bytes, wanted.end_bytes)
            merged[-1] = ByteRange(last.offset_bytes, end_bytes - last.offset_bytes)
        else:
            merged.append(wanted)
    return merged


class LocalSource:
    """A local regular file. Close it, or use it as a context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            # O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it.
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _translated(error, self._path) from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise PermanentError(Reason.NOT_A_VIDEO, f"{self._path} is not a regular file")
        self._size_bytes = status.st_size

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See `Source`. Raises NOT_FOUND, FORBIDDEN or STORE_UNAVAILABLE."""
        try:
            return [self._read(wanted) for wanted in ranges]
        except OSError as error:
            raise _translated(error, self._path) from error

    def _read(self, wanted: ByteRange) -> bytes:
        parts: list[bytes] = []
        offset_bytes, left_bytes = wanted
        while left_bytes > 0 and (part := os.pread(self._fd, left_bytes, offset_bytes)):
            parts.append(part)
            offset_bytes += len(part)
            left_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _translated(error: OSError, path: Path) -> PermanentError | TransientError:
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return PermanentError(Reason.NOT_FOUND, f"{path} does not exist")
    if error.errno == errno.ELOOP:
        return PermanentError(Reason.NOT_FOUND, f"{path} is a symbolic link that leads back to itself")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return TransientError(Reason.FORBIDDEN, f"{path} may not be read by this user")
    return TransientError(Reason.STORE_UNAVAILABLE, f"reading {path} failed: {error.strerror or error}")
