"""A file and a server that tell when somebody looks at them."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from pathlib import Path
from typing import Self

_IN_ACCESS, _IN_OPEN = 0x1, 0x20


class CanaryFile:
    """A file of which inotify reports every opening and reading."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.path = path
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, bytes(path), _IN_ACCESS | _IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    @property
    def was_touched(self) -> bool:
        try:
            return bool(os.read(self._fd, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._fd)


class CanaryServer:
    """Counts the connections made to a port of this machine."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
