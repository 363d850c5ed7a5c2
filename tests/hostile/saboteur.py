"""A nursery whose children do what an upload tells them to: crash, hang, hunger for memory, or try to break out.

`DecoderPool(…, nursery="tests.hostile.saboteur")`. Nothing in the product knows of it. Uploads without an order are
treated as ever.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pipeline.errors import PermanentError, Reason
from pipeline.media import KeyframeSettings
from pipeline.video import child, nursery
from pipeline.video.extract import Extractor
from pipeline.video.limits import Limits
from pipeline.video.source import ByteRange, Source

NURSERY = "tests.hostile.saboteur"
_ORDER = b"ORDER "


def order(word: str) -> bytes:
    """An upload that gives an order."""
    return _ORDER + word.encode() + b"\n"


class Saboteur(Extractor):
    def __init__(self, source: Source, settings: KeyframeSettings, limits: Limits) -> None:
        head = source.read_ranges([ByteRange(0, 64)])[0]
        if head.startswith(_ORDER):
            _ORDERS[head[len(_ORDER) :].split(b"\n")[0].decode()]()
        super().__init__(source, settings, limits)


def _crash() -> None:
    ctypes.string_at(0)


def _hang() -> NoReturn:
    while True:
        time.sleep(1)


def _spin() -> NoReturn:
    while True:
        pass


def _hunger() -> None:
    kept = []
    while True:
        kept.append(bytearray(64 * 1024**2))


def _exit() -> None:
    os._exit(3)


def _break_out() -> None:
    """Tries everything; what worked is told as a rejection's detail."""
    worked = [name for name, attempt in _ATTEMPTS.items() if _works(attempt)]
    raise PermanentError(Reason.CORRUPT, f"worked: {worked}")


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, RuntimeError, ValueError, LookupError):
        return False
    return True


def _memory_to_execute() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    if libc.mmap(None, ctypes.c_size_t(4096), 7, 0x22, -1, ctypes.c_long(0)) == ctypes.c_void_p(-1).value:
        raise OSError("mmap")


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[name](*arguments) != 0:
        raise OSError(name)


_ATTEMPTS: dict[str, Callable[[], object]] = {
    "read a file": lambda: Path("/etc/passwd").read_bytes(),
    "list a folder": lambda: os.listdir("/"),  # noqa: PTH208
    "look at a file": lambda: os.stat("/etc/passwd"),  # noqa: PTH116
    "write a file": lambda: Path("/tmp/vs-escaped").write_bytes(b"x"),
    "delete a file": lambda: Path("/tmp/vs-escaped").unlink(),
    "TCP": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
    "a TCP socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "a UDP socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "a UNIX socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "fork": os.fork,
    "another program": lambda: subprocess.run(["/bin/true"], check=True),
    "a thread": lambda: threading.Thread(target=time.sleep, args=(0,)).start(),
    "a signal to the parent": lambda: os.kill(os.getppid(), 0),
    "a signal to the group": lambda: os.killpg(0, signal.SIGCONT),
    "memory to execute": _memory_to_execute,
    "another process's memory": lambda: _call("ptrace", 16, os.getppid(), 0, 0),
    "another user": lambda: os.setuid(0),
    "a name space": lambda: _call("unshare", 0x10000000),
}


_ORDERS: dict[str, Callable[[], None]] = {
    "crash": _crash,
    "hang": _hang,
    "spin": _spin,
    "hunger": _hunger,
    "exit": _exit,
    "break out": _break_out,
}

if __name__ == "__main__":
    setattr(child, "Extractor", Saboteur)  # noqa: B010 - a plain assignment would need three excuses to mypy
    nursery.main(sys.argv[1:])
