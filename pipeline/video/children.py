"""Decoder processes as the parent sees them: the nursery that forks them, and one child with its channels."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.video import wire
from pipeline.video.limits import Limits
from pipeline.video.report import sequence as checked_list
from pipeline.video.report import text

NURSERY = "pipeline.video.nursery"
_STDERR_TAIL_BYTES = 2000
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_MAX_ANSWER_BYTES = 4096
_KEEP_MEMORY = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=134217728"
"""Pictures of up to 32 MiB are taken from memory that the child has touched already; up to 128 MiB of it are kept."""
_NURSERY_S = _HELLO_S = 30.0
_LAST_WORDS_S = 1.0


def child_environment() -> dict[str, str]:
    """The whole environment of a child: what Python and its libraries need, and one thread for each of them."""
    own = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    return own | {
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GLIBC_TUNABLES": _KEEP_MEMORY,
    }


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


class Child:
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
            select.select([self._stderr_fd], [], [], _LAST_WORDS_S)  # they come after the socket has closed
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
