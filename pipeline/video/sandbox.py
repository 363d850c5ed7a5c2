"""A pool of decoder children, as the parent sees it: uploaded bytes are parsed and decoded only in them.

Threat model: a child may be taken over by the video that it decodes. So it gets no secret, no file and no
network address; it asks for byte ranges, which the parent checks and reads; and what it reports is
bounded and checked value by value. Pixels come back in memory that the parent made and reads with `pread`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from pipeline.errors import Reason, TransientError
from pipeline.media import BgrImage, Extraction, ExtractionCost, Keyframe, KeyframeSettings
from pipeline.video import wire
from pipeline.video.limits import Limits
from pipeline.video.report import Report, ReportError, integer, number, read_keyframe, read_rejection, read_report, text
from pipeline.video.report import sequence as checked_list
from pipeline.video.source import ByteRange, Source

_STDERR_TAIL_BYTES = 2000
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_MAX_REQUESTS = 200_000


def child_environment() -> dict[str, str]:
    """The whole environment of a child: what Python and its libraries need, and one thread for each of them."""
    own = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    return own | {
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


class DecoderPool:
    """Up to `size` children, started when first needed and kept over many videos. Thread-safe."""

    def __init__(self, size: int, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._is_closed = False

    def extract(self, source: Source, settings: KeyframeSettings) -> Extraction:
        """The keyframes of `source`; waits for a free child.

        Raises PermanentError when the video is at fault, TransientError with DECODE_TIMEOUT or DECODER_CRASHED when
        the child had to be given up, and whatever `source` raised while its bytes were read.
        """
        with self._free:
            child = self._take()
            try:
                return _Conversation(child, source, settings, self._limits).run()
            finally:
                self._give_back(child)

    def _take(self) -> _Child:
        with self._lock:
            if self._is_closed:
                raise TransientError(Reason.INTERNAL_ERROR, "the decoder pool is closed")
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    return child
                child.close()  # it ended while idle (the kernel was short of memory, say): no video's fault
        try:
            return _Child(self._limits)
        except OSError as error:
            raise TransientError(Reason.INTERNAL_ERROR, f"no decoder process could be started: {error}") from error

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            if child.is_trusted and child.videos < self._limits.videos_per_child and not self._is_closed:
                self._idle.append(child)
                return
        child.close()

    def close(self) -> None:
        """Ends the idle children; busy ones end with their video."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Child:
    """One child process with its socket, its image memory and the pipe that its stderr goes to."""

    def __init__(self, limits: Limits) -> None:
        self.image_bytes = 3 * limits.max_image_pixels
        self.is_trusted = False
        self.videos = 0
        with ExitStack() as undo:
            self.connection, theirs = socket.socketpair()
            undo.callback(self.connection.close)
            with theirs:
                self.image_fd = _shared_memory(self.image_bytes)
                undo.callback(os.close, self.image_fd)
                self._stderr_fd, stderr_write_fd = os.pipe()
                undo.callback(os.close, self._stderr_fd)
                os.set_blocking(self._stderr_fd, False)
                os.set_blocking(stderr_write_fd, False)  # a full pipe loses words, it stops no child
                try:
                    self.process = self._started(theirs.fileno(), stderr_write_fd, limits)
                finally:
                    os.close(stderr_write_fd)
            undo.pop_all()

    def _started(self, socket_fd: int, stderr_fd: int, limits: Limits) -> subprocess.Popen[bytes]:
        numbers = (socket_fd, self.image_fd, self.image_bytes, limits.memory_bytes, limits.max_open_files)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.video.child", *map(str, numbers)],
            env=child_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr_fd,
            close_fds=True,
            pass_fds=(socket_fd, self.image_fd),
            start_new_session=True,
        )

    def stderr_tail(self) -> str:
        """The last words, printable; empties the pipe."""
        tail = b""
        try:
            while part := os.read(self._stderr_fd, 65536):
                tail = (tail + part)[-_STDERR_TAIL_BYTES:]
        except BlockingIOError:
            pass
        return text(" ".join(tail.decode("utf-8", "replace").split())[-200:])

    def kill(self) -> int:
        """Ends the process at once; its return code, negative for a signal."""
        self.process.kill()
        return self.process.wait()

    def close(self) -> None:
        self.kill()
        self.connection.close()
        os.close(self.image_fd)
        os.close(self._stderr_fd)


def _shared_memory(size_bytes: int) -> int:
    """A file descriptor of anonymous memory (an unlinked file where the system has none), of fixed size."""
    if sys.platform == "linux":
        fd = os.memfd_create("videosieve-image", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="videosieve-image")
        Path(path).unlink()
    os.ftruncate(fd, size_bytes)
    return fd


class _Conversation:
    """One video's exchange with a child. The child is trusted again only after a proper end."""

    def __init__(self, child: _Child, source: Source, settings: KeyframeSettings, limits: Limits) -> None:
        self._child, self._source, self._settings, self._limits = child, source, settings, limits
        self._deadline = wire.Deadline(limits.wall_s)  # the source's own time is not charged to the child
        self._may_read_bytes = 2 * source.size_bytes + limits.read_slack_bytes
        self._read_bytes = self._ranges = self._requests = 0

    def run(self) -> Extraction:
        child = self._child
        child.is_trusted = False
        child.videos += 1
        start_s = time.thread_time()
        try:
            extraction = self._exchange(start_s)
        except TimeoutError as error:
            child.kill()
            raise TransientError(
                Reason.DECODE_TIMEOUT, f"decoding took longer than {self._limits.wall_s:g} s"
            ) from error
        except (wire.WireError, ReportError) as error:
            raise self._crash(str(error)) from error
        finally:
            child.stderr_tail()
        return extraction

    def _exchange(self, start_s: float) -> Extraction:
        request = {
            "size_bytes": self._source.size_bytes,
            "settings": asdict(self._settings),
            "limits": asdict(self._limits),
        }
        wire.send(self._child.connection, request, self._deadline)
        report: Report | None = None
        shown: list[tuple[Keyframe, BgrImage]] = []
        while True:
            message, _ = wire.receive(self._child.connection, self._deadline, 0)
            match message.get("kind"):
                case "read":
                    self._serve(message)
                case "found" if report is None:
                    report = read_report(message, self._limits)
                case "image" if report is not None and len(shown) < max(1, self._settings.max_keyframes):
                    shown.append((read_keyframe(message, self._limits), self._image(message)))
                    wire.send(self._child.connection, {"kind": "next"}, self._deadline)
                case "done" if report is not None and shown:
                    self._child.is_trusted = True
                    return self._extraction(report, shown, message, start_s)
                case "rejected":
                    rejection = read_rejection(message)
                    self._child.is_trusted = True
                    raise rejection
                case "crashed":
                    raise ReportError(text(message.get("detail")))
                case _:
                    raise ReportError("an unexpected message")

    def _serve(self, message: Mapping[str, Any]) -> None:
        """Reads what the child asks for, if it may have that."""
        size_bytes = self._source.size_bytes
        ranges = []
        for pair in checked_list(message.get("ranges"))[: wire.MAX_RANGES + 1]:
            offset_bytes, length_bytes = checked_list(pair, 2)
            wanted = ByteRange(integer(offset_bytes, 0, size_bytes), integer(length_bytes, 0, wire.MAX_PAYLOAD_BYTES))
            ranges.append(wanted)
        wanted_bytes = sum(wanted.length_bytes for wanted in ranges)
        self._requests += 1
        self._ranges += len(ranges)
        if (
            len(ranges) > wire.MAX_RANGES
            or wanted_bytes > wire.MAX_PAYLOAD_BYTES
            or self._requests > _MAX_REQUESTS
            or self._read_bytes > self._may_read_bytes
        ):
            raise ReportError("the decoder asked for too many bytes")
        parts = self._source.read_ranges(ranges)
        self._read_bytes += sum(map(len, parts))
        lengths = [len(part) for part in parts]
        wire.send(self._child.connection, {"kind": "data", "lengths": lengths}, self._deadline, parts)

    def _image(self, message: Mapping[str, Any]) -> BgrImage:
        """A copy of the pixels that the child left in the shared memory."""
        max_pixels = self._limits.max_image_pixels
        width_px = integer(message.get("width_px"), 1, max_pixels)
        height_px = integer(message.get("height_px"), 1, max_pixels)
        if width_px * height_px > max_pixels:
            raise ReportError("an image larger than allowed")
        image = np.empty((height_px, width_px, 3), np.uint8)
        if os.preadv(self._child.image_fd, [image.data.cast("B")], 0) != image.size:
            raise ReportError("an image cut short")
        return image

    def _extraction(
        self, report: Report, shown: list[tuple[Keyframe, BgrImage]], done: Mapping[str, Any], start_s: float
    ) -> Extraction:
        child_s = number(done.get("cpu_s"), 0.0, self._limits.cpu_s + 10.0)
        return Extraction(
            video=report.video,
            cuts_s=report.cuts_s,
            motion_s=report.motion_s,
            keyframes=tuple(keyframe for keyframe, _ in shown),
            images=tuple(image for _, image in shown),
            warnings=report.warnings,
            coverage=report.coverage,
            cost=ExtractionCost(
                cpu_s=child_s + time.thread_time() - start_s,
                bytes_read=self._read_bytes,
                file_bytes=self._source.size_bytes,
                ranges=self._ranges,
                frames_decoded=integer(done.get("frames_decoded"), 0, 2**31),
            ),
        )

    def _crash(self, cause: str) -> TransientError:
        """What to raise when the child died or talked nonsense: it is ended and its last words are kept."""
        try:
            code = self._child.process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            code = 0
            self._child.kill()
        if code == -signal.SIGXCPU:
            return TransientError(
                Reason.DECODE_TIMEOUT, f"decoding took more than {self._limits.cpu_s:g} s of processor time"
            )
        ending = f" (ended by {signal.Signals(-code).name})" if code < 0 else ""
        words = self._child.stderr_tail()
        return TransientError(
            Reason.DECODER_CRASHED, f"the decoder failed: {cause}{ending}{': ' + words if words else ''}"
        )
