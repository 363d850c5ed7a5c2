"""A pool of decoder children, as the parent sees it: uploaded bytes are parsed and decoded only in them.

Threat model: a child may be taken over by the video that it decodes. So it gets no secret, no file and no
network address; it asks for byte ranges, which the parent checks and reads; and what it reports is
bounded and checked value by value. Pixels come back in memory that the parent made and reads with `pread`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from pipeline.errors import Reason, TransientError
from pipeline.media import BgrImage, Extraction, ExtractionCost, Keyframe, KeyframeSettings
from pipeline.video import wire
from pipeline.video.declared import suffix_of
from pipeline.video.limits import Limits
from pipeline.video.report import Report, ReportError, integer, number, read_keyframe, read_rejection, read_report, text
from pipeline.video.report import sequence as checked_list
from pipeline.video.source import ByteRange, Source

_STDERR_TAIL_BYTES = 2000
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_MAX_REQUESTS = 200_000
_MAX_ANSWER_BYTES = 4096
_DAMAGED = "damaged"
_NURSERY_S = _HELLO_S = 30.0
NURSERY = "pipeline.video.nursery"


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
    """Up to `size` children, started when first needed and kept over many videos. Thread-safe.

    `nursery` is the module that children are forked by; tests give one whose children misbehave.
    """

    def __init__(self, size: int, limits: Limits | None = None, *, nursery: str = NURSERY) -> None:
        self._limits = limits or Limits()
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._children = 0
        self._is_closed = False
        self._nursery = Nursery(nursery)

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

    def layers(self) -> tuple[str, ...]:
        """How a child of this pool is confined, as it says itself: which of `confine.LAYERS` are in force."""
        with self._free:
            child = self._take()
            child.is_trusted = True
            self._give_back(child)
            return child.layers

    def _take(self) -> _Child:
        with self._lock:
            if self._is_closed:
                raise TransientError(Reason.INTERNAL_ERROR, "the decoder pool is closed")
            idle = self._idle.pop() if self._idle else None
            self._children += idle is None
        if idle is not None and idle.is_alive():
            return idle
        if idle is not None:
            idle.close()  # it ended while idle (the kernel was short of memory, say): no video's fault
        try:
            return _Child(self._nursery, self._limits)
        except (OSError, wire.WireError, ReportError) as error:
            self._one_less()
            raise TransientError(Reason.INTERNAL_ERROR, f"no decoder process could be started: {error}") from error

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            if child.is_trusted and child.videos < self._limits.videos_per_child and not self._is_closed:
                self._idle.append(child)
                return
        child.close()
        self._one_less()

    def _one_less(self) -> None:
        with self._lock:
            self._children -= 1
            is_over = self._is_closed and not self._children
        if is_over:
            self._nursery.close()

    def close(self) -> None:
        """Ends the idle children; busy ones end with their video."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._children -= len(idle)
            is_over = not self._children
        for child in idle:
            child.close()
        if is_over:
            self._nursery.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Nursery:
    """The process that children are forked from, as the parent sees it; started when first needed. Thread-safe.

    See `pipeline.video.nursery` for what is said. One that died is replaced, with the next child.
    """

    def __init__(self, module: str = NURSERY) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def spawn(self, numbers: Mapping[str, int], descriptors: Sequence[int]) -> int:
        """Forks a child; its process id. Raises OSError."""
        with self._lock:
            for attempt in (1, 2):
                control = self._control or self._start()
                try:
                    answer = self._ask(control, {"op": "spawn", **numbers}, descriptors)
                    break
                except OSError:
                    self._stop()
                    if attempt == 2:
                        raise
        if "pid" not in answer:
            raise OSError(str(answer.get("error")))
        return int(answer["pid"])

    def end(self, pid: int) -> int:
        """Kills and reaps a child; how it ended: its exit code, negative for a signal. 0 where that is not known."""
        with self._lock:
            if self._control is None:
                return 0
            try:
                return int(self._ask(self._control, {"op": "end", "pid": pid}, ()).get("code", 0))
            except OSError:
                self._stop()
                return 0

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _ask(self, control: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        socket.send_fds(control, [json.dumps(request).encode()], list(descriptors))
        data = control.recv(_MAX_ANSWER_BYTES)
        if not data:
            raise OSError("the process that decoders are forked from has ended")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _start(self) -> socket.socket:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno())],
                env=child_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                close_fds=True,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._control.settimeout(_NURSERY_S)
        return self._control

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class _Child:
    """One child process with its socket, its image memory and the pipe that its stderr goes to."""

    def __init__(self, nursery: Nursery, limits: Limits) -> None:
        self._nursery = nursery
        self.image_bytes = 3 * limits.max_image_pixels
        self.is_trusted = False
        self.videos = 0
        self._code: int | None = None
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
                    numbers = {
                        "image_bytes": self.image_bytes,
                        "memory_bytes": limits.memory_bytes,
                        "open_files": limits.max_open_files,
                    }
                    self.pid = nursery.spawn(numbers, (theirs.fileno(), self.image_fd, stderr_write_fd))
                finally:
                    os.close(stderr_write_fd)
            undo.callback(self.kill)
            self.layers = self._hello()
            undo.pop_all()

    def _hello(self) -> tuple[str, ...]:
        """Its first message: how it is confined."""
        try:
            message, _ = wire.receive(self.connection, wire.Deadline(_HELLO_S), 0)
        except (wire.WireError, TimeoutError) as error:
            raise OSError(f"it did not begin: {error} {self.stderr_tail()}") from error
        return tuple(text(layer, 32) for layer in checked_list(message.get("layers")))

    def is_alive(self) -> bool:
        """Whether the other end of the socket is open and silent, as an idle child's is."""
        self.connection.setblocking(False)
        try:
            self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

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
        """Ends the process at once; how it ended, negative for a signal. What it died of before counts."""
        if self._code is None:
            self._code = self._nursery.end(self.pid)
        return self._code

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
    """One video's exchange with a child. The child is trusted again only after a proper end of a sound video."""

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
        except wire.WireError as error:
            raise self._crash(str(error), child.kill()) from error
        except ReportError as error:
            child.kill()
            raise self._crash(str(error), 0) from error
        finally:
            child.stderr_tail()
        return extraction

    def _exchange(self, start_s: float) -> Extraction:
        request = {
            "size_bytes": self._source.size_bytes,
            "settings": asdict(self._settings),
            "limits": asdict(self._limits),
            "suffix": suffix_of(self._source.name),
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
                    self._child.is_trusted = not any(w.startswith(_DAMAGED) for w in report.warnings)
                    return self._extraction(report, shown, message, start_s)
                case "rejected":
                    rejection = read_rejection(message)
                    self._child.is_trusted = rejection.reason is not Reason.CORRUPT
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

    def _crash(self, cause: str, code: int) -> TransientError:
        """What to raise when the child died, of `code`, or talked nonsense and was ended; with its last words."""
        if code == -signal.SIGXCPU:
            return TransientError(
                Reason.DECODE_TIMEOUT, f"decoding took more than {self._limits.cpu_s:g} s of processor time"
            )
        ending = f" (ended by {signal.Signals(-code).name})" if code < 0 else ""
        words = self._child.stderr_tail()
        return TransientError(
            Reason.DECODER_CRASHED, f"the decoder failed: {cause}{ending}{': ' + words if words else ''}"
        )
