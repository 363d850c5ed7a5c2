"""Local files and folders, with no services at all: in parallel, and resumable through the output folder.

OUT/results.jsonl      one result document a line; a file that has its line is not done again
OUT/keyframes/…        the pictures
OUT/index.html         the report (`analyze`)
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pipeline.disposition import MAX_FAULTS
from pipeline.document import Document, rejected_document
from pipeline.errors import PermanentError, Reason, TransientError, UserError, VideosieveError
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage
from pipeline.video.source import LocalSource, Source

RESULTS_FILE = "results.jsonl"

Work = Callable[[Source, str], tuple[Document, Sequence[BgrImage]]]
"""Source and shown path → the result document, its keyframes' `image` still null, and the pictures."""


_KINDS = ((stat.S_ISFIFO, "pipes"), (stat.S_ISSOCK, "sockets"))


def find_files(
    paths: Sequence[Path], *, leave_out: Path | None = None, passed_over: Counter[str] | None = None
) -> list[Path]:
    """The files named, and all files below the folders named, sorted; hidden ones and `leave_out` are passed over.

    What lies in a folder and is no file is counted in `passed_over`, by what it is.

    Raises UserError(BAD_INPUT) for a path that does not exist and for a folder that cannot be looked into.
    """
    left_out = leave_out.resolve() if leave_out else None
    passed_over = Counter() if passed_over is None else passed_over
    found: dict[Path, Path] = {}
    for path in paths:
        try:
            if _is_loop(path):
                raise UserError(Reason.BAD_INPUT, f"{path}: a symbolic link that leads back to itself")
            if left_out is not None and path.resolve() == left_out:
                raise UserError(Reason.BAD_INPUT, f"{path} is the output folder itself; choose another one with --out")
            if not path.exists():
                raise UserError(Reason.BAD_INPUT, f"{path}: no such file or folder")
            for file in _below(path, left_out, passed_over) if path.is_dir() else [path]:
                found.setdefault(file.resolve(), file)
        except OSError as error:
            raise UserError(Reason.BAD_INPUT, f"{error.filename or path}: {error.strerror}") from None
    return sorted(found.values())


def _below(folder: Path, left_out: Path | None, passed_over: Counter[str]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        here = Path(parent)
        folders[:] = [name for name in folders if not name.startswith(".") and (here / name).resolve() != left_out]
        passed_over["links to folders"] += sum((here / name).is_symlink() for name in folders)
        for file in (here / name for name in files if not name.startswith(".")):
            if kind := _no_file(file):
                passed_over[kind] += 1
            else:
                yield file


def _no_file(path: Path) -> str | None:
    """What `path` is, in the plural; None for a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "links that lead back to themselves" if error.errno == errno.ELOOP else "links that lead nowhere"
    if stat.S_ISREG(mode):
        return None
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "devices")


def _is_loop(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    except ValueError:  # no path can be called so
        return False
    return False


def _refuse(error: OSError) -> None:
    """Left to itself, os.walk passes over what it may not read, and nobody would miss the videos."""
    raise error


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a finished result belongs to; another size, time or decision hash means: do it again."""

    path: str
    size_bytes: int
    mtime_ns: int
    settings_hash: str

    @classmethod
    def of(cls, file: Path, settings_hash: str) -> Self | None:
        """None for a file that is not there any more, or that may not be looked at."""
        try:
            found = file.stat()
        except OSError:
            return None
        return cls(str(file), found.st_size, found.st_mtime_ns, settings_hash)


class Output:
    """The output folder. Thread-safe."""

    def __init__(self, folder: Path, settings_hash: str) -> None:
        self.folder = folder
        self._settings_hash = settings_hash
        self._lock = threading.Lock()
        self.passed_over = 0
        """Lines of the results that are none: cut short by an interruption, or edited by hand."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._done = self._read()
            self._lines = (folder / RESULTS_FILE).open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(Reason.BAD_INPUT, f"output folder {folder}: {error.strerror}") from None

    def done(self, file: Path) -> Document | None:
        """The result of `file` from an earlier call, None where there is none that still holds."""
        identity = self.identity(file)
        document = self._done.get(identity) if identity else None
        return document if document is not None and self._has_pictures(document) else None

    def _has_pictures(self, document: Document) -> bool:
        """Whether the pictures that a result speaks of are still there: what was deleted is made again."""
        names = [keyframe.get("image") for keyframe in document.get("keyframes", [])]
        return all((self.folder / name).is_file() for name in names if name is not None)

    def identity(self, file: Path) -> _Identity | None:
        """What a result of `file` would belong to; take it before the file is read, for it may change meanwhile."""
        return _Identity.of(file, self._settings_hash)

    def write(self, file: Path, identity: _Identity, document: Document, images: Sequence[BgrImage]) -> None:
        """Write pictures, then the line that makes the result count. Raises UserError(BAD_INPUT), as on a full disk."""
        try:
            self._write(file, identity, document, images)
        except OSError as error:
            raise UserError(Reason.BAD_INPUT, f"output folder {self.folder}: {error.strerror}") from None

    def _write(self, file: Path, identity: _Identity, document: Document, images: Sequence[BgrImage]) -> None:
        if images:
            folder = Path("keyframes") / self._slug(file)
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
            for index, (keyframe, image) in enumerate(zip(document["keyframes"], images, strict=True)):
                keyframe["image"] = str(folder / f"{index:03d}.jpg")
                (self.folder / keyframe["image"]).write_bytes(encode_jpeg(image))
        line = json.dumps({"identity": _plain(identity), "seal": _seal(document), "document": document})
        with self._lock:
            self._lines.write(line + "\n")
            self._lines.flush()
            self._done[identity] = document

    def close(self) -> None:
        with self._lock:
            self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> dict[_Identity, Document]:
        """Finished results; a line cut short by an interruption is dropped, and its file done again."""
        path = self.folder / RESULTS_FILE
        done: dict[_Identity, Document] = {}
        if not path.exists():
            return done
        text = path.read_text("utf-8", errors="replace")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                identity = _Identity(**entry["identity"])
                if entry["seal"] == _seal(entry["document"]):
                    done[identity] = entry["document"]
                else:
                    self.passed_over += 1
            except (ValueError, KeyError, TypeError, RecursionError):
                self.passed_over += 1
        if text and not text.endswith("\n"):
            with path.open("a", encoding="utf-8") as torn:
                torn.write("\n")
        return done

    @staticmethod
    def _slug(file: Path) -> str:
        digest = hashlib.sha256(str(file.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:8]
        readable = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in file.stem)[:40]
        return f"{readable}-{digest}"


def _seal(document: Document) -> str:
    """Tells a document that was edited by hand, on which nothing here or in a report can rely, from one of ours."""
    canonical = json.dumps(document, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _plain(identity: _Identity) -> dict[str, Any]:
    return {name: getattr(identity, name) for name in _Identity.__slots__}


def run_files(
    files: Sequence[Path],
    work: Work,
    *,
    jobs: int,
    output: Output | None,
    on_result: Callable[[Path, Document], None],
) -> list[Document]:
    """Do `work` on every file, `jobs` at a time; the documents in the order of `files`.

    A rejected video is a document like any other. KeyboardInterrupt finishes nothing more; what has its line in
    `output` stays done. Errors of ours are raised after the running files end.
    """
    documents: dict[Path, Document] = {}

    def finish(file: Path, document: Document) -> None:
        documents[file] = document
        on_result(file, document)

    todo = []
    for file in files:
        known = output.done(file) if output else None
        if known is None:
            todo.append(file)
        else:
            finish(file, known)
    threads = ThreadPoolExecutor(jobs, thread_name_prefix="file")
    try:
        running: dict[Future[Document], Path] = {threads.submit(_one, file, work, output): file for file in todo}
        while running:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                finish(running.pop(future), future.result())
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
    return [documents[file] for file in files]


_MENDABLE = {Reason.FORBIDDEN, Reason.NOT_FOUND}
"""Rejections that may be over at the next call though the file keeps its size and time: not remembered."""


def _one(file: Path, work: Work, output: Output | None) -> Document:
    images: Sequence[BgrImage] = ()
    identity = output.identity(file) if output else None
    stays = True
    try:
        document, images = _with_second_try(file, work)
    except (PermanentError, TransientError) as error:
        if not _is_videos_fault(error):
            raise
        document = rejected_document(str(file), error)
        stays = error.reason not in _MENDABLE
    if output is not None and identity is not None and stays:
        output.write(file, identity, document, images)
    return document


def _with_second_try(file: Path, work: Work) -> tuple[Document, Sequence[BgrImage]]:
    """A decoder that died may have been unlucky once; see `pipeline.disposition`."""
    for _ in range(MAX_FAULTS - 1):
        try:
            return _read_and_work(file, work)
        except TransientError as error:
            if not _is_videos_fault(error):
                raise
    return _read_and_work(file, work)


def _read_and_work(file: Path, work: Work) -> tuple[Document, Sequence[BgrImage]]:
    with LocalSource(file) as source:
        return work(source, str(file))


def _is_videos_fault(error: VideosieveError) -> bool:
    """A file that cannot be read is the file's fault here: on a laptop nobody else will mend its permissions."""
    return isinstance(error, PermanentError) or error.reason in {
        Reason.DECODE_TIMEOUT,
        Reason.DECODER_CRASHED,
        Reason.FORBIDDEN,
    }
