"""Data references: a QuickTime movie may say that its pictures lie in another file. That file is never read. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.errors import PermanentError, Reason
from pipeline.video.boxes import children, find

_SELF_CONTAINED = 1


def refuse_other_files(moov: memoryview) -> None:
    """Raises UNSUPPORTED_CODEC for a movie that refers to other movies, or whose pictures lie in another file.

    A reference that is not marked as "in this file" but names no place is a careless writer's, and harmless.
    """
    if find(moov, b"rmra") is not None:
        raise PermanentError(Reason.UNSUPPORTED_CODEC, "the movie only refers to other files")
    for kind, track in children(moov):
        handler = find(track, b"mdia", b"hdlr") if kind == b"trak" else None
        if handler is not None and bytes(handler[8:12]) == b"vide" and any(_elsewhere(track)):
            raise PermanentError(Reason.UNSUPPORTED_CODEC, "the pictures lie in another file")


def _elsewhere(track: memoryview) -> Iterator[bool]:
    dref = find(track, b"mdia", b"minf", b"dinf", b"dref")
    for _, entry in children(dref[8:]) if dref is not None else ():
        yield len(entry) > 4 and not entry[3] & _SELF_CONTAINED and any(entry[4:])
