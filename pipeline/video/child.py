"""The decoder child: waits for videos on a socket, asks the parent for their bytes, answers with findings.

Forked by `nursery`. It opens no file and no connection of its own, holds no secret, and ends when the parent does: the
socket then reads as closed.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.errors import PermanentError, Reason
from pipeline.media import BgrImage, KeyframeSettings
from pipeline.video import report, wire
from pipeline.video.confine import confine
from pipeline.video.extract import Extractor
from pipeline.video.limits import Limits
from pipeline.video.opening import read_index
from pipeline.video.source import ByteRange
from pipeline.video.warmup import rehearse

_FOREVER = wire.Deadline(None)
_PICTURES_BYTES = 12 * 1024 * 1024
"""Of memory that decoding 720p touches and that each child would first touch on the bill of its first video."""


class PipeSource:
    """A `Source` whose bytes come from the parent."""

    def __init__(self, connection: socket.socket, size_bytes: int, suffix: str) -> None:
        self._connection = connection
        self._size_bytes = size_bytes
        self._suffix = suffix

    @property
    def name(self) -> str:
        """Only its suffix is true: what people call a video is none of a decoder's business."""
        return f"video.{self._suffix}"

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        if not ranges:
            return []
        wire.send(self._connection, {"kind": "read", "ranges": [list(wanted) for wanted in ranges]}, _FOREVER)
        answer, payload = wire.receive(self._connection, _FOREVER, wire.MAX_PAYLOAD_BYTES)
        parts, at = [], 0
        for length in answer["lengths"]:
            parts.append(bytes(payload[at : at + length]))
            at += length
        return parts


def serve(connection: socket.socket, images: mmap.mmap) -> None:
    """Handles one request after the other until the parent hangs up."""
    while True:
        try:
            request, _ = wire.receive(connection, _FOREVER, 0)
        except wire.WireError:
            return
        limits = Limits(**request["limits"])
        _limit_cpu(limits.cpu_s)
        source = PipeSource(connection, request["size_bytes"], request["suffix"])
        try:
            wire.send(connection, _handled(connection, images, source, request, limits), _FOREVER)
        except wire.WireError:
            return


def _handled(
    connection: socket.socket, images: mmap.mmap, source: PipeSource, request: dict[str, Any], limits: Limits
) -> dict[str, Any]:
    """Does one video; the last message about it."""
    start_s = time.process_time()
    try:
        if request["task"] == "probe":
            return {"kind": "probed", **report.probe_json(read_index(source, limits))}
        extractor = Extractor(source, KeyframeSettings(**request["settings"]), limits)
        _send_findings(connection, images, extractor)
        frames_decoded = extractor.frames_decoded
        return {"kind": "done", "cpu_s": time.process_time() - start_s, "frames_decoded": frames_decoded}
    except PermanentError as error:
        return {"kind": "rejected", "reason": error.reason.value, "detail": error.detail}
    except wire.WireError:
        raise
    except Exception as error:  # noqa: BLE001 - the handler: whatever else an upload provokes is reported as a crash
        return {"kind": "crashed", "detail": f"{type(error).__name__}: {error}"[:300]}


def _send_findings(connection: socket.socket, images: mmap.mmap, extractor: Extractor) -> None:
    found = extractor.findings()
    facts = report.Report(
        video=found.video,
        cuts_s=tuple(max(0.0, cut.t_s) for cut in found.cuts),
        motion_s=tuple((moving.start_s, moving.end_s) for moving in found.motion),
        warnings=found.warnings,
        coverage=found.coverage,
    )
    wire.send(connection, {"kind": "found", **report.report_json(facts)}, _FOREVER)
    shown = 0
    for keyframe, image in extractor.images(found.choices):
        _put(images, image)
        height_px, width_px, _ = image.shape
        size = {"kind": "image", "width_px": width_px, "height_px": height_px}
        wire.send(connection, size | report.keyframe_json(keyframe), _FOREVER)
        wire.receive(connection, _FOREVER, 0)  # the parent has copied it
        shown += 1
    if not shown:
        raise PermanentError(Reason.CORRUPT, "frames that could be looked at did not decode a second time")


def _put(images: mmap.mmap, image: BgrImage) -> None:
    """Into the shared memory, through the map: a file size limit of 0 forbids writing in any other way."""
    np.frombuffer(images, np.uint8)[: image.size] = image.ravel()


def _limit_cpu(cpu_s: float) -> None:
    """Lets this video use `cpu_s` more seconds of processor time; then the kernel ends the process."""
    spent_s = time.process_time()
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(spent_s + cpu_s) + 1, hard))


def confined(socket_fd: int, image_fd: int, request: dict[str, Any], clip: bytes) -> None:
    """Gives up all rights, shows on `clip`, one of ours, that decoding works without them, and serves."""
    with socket.socket(fileno=socket_fd) as connection, mmap.mmap(image_fd, request["image_bytes"]) as images:
        os.close(image_fd)
        layers = confine(memory_bytes=request["memory_bytes"], open_files=request["open_files"])
        rehearse(clip)
        bytearray(_PICTURES_BYTES)  # written to once, then kept by the allocator (`children.child_environment`)
        wire.send(connection, {"kind": "hello", "layers": layers}, _FOREVER)
        serve(connection, images)
