"""The process that decoder children are forked from: it has loaded PyAV, cv2 and the decoding code, nothing else.

Started by `sandbox` as `python -m pipeline.video.nursery CONTROL_FD`, with a clean environment and no secrets. It has
one thread, opens no upload and runs none of its code, so each child begins as the first one did; forking takes
2 ms of processor time where a fresh interpreter takes 250 ms. One request at a time, answered in order:

    {"op": "spawn", …} with the descriptors of socket, image memory and stderr  ->  {"pid": n}
    {"op": "end", "pid": n}: the child is killed and reaped                     ->  {"code": exit code or -signal}

It ends when its parent closes the socket or dies, which it reads as the end of the socket (the kernel's signal of a
parent's death would come with the end of the thread that started it); its children end with it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.video import child, confine
from pipeline.video.warmup import warm_up

MAX_REQUEST_BYTES = 4096
_DESCRIPTORS = 3
_REAP_S = 5.0
_STDERR = 2

Serve = Callable[[int, int, dict[str, Any]], None]
"""What a child does with its socket, its image memory and the numbers of the request."""


def run(control: socket.socket, serve: Serve) -> None:
    """Answers until the other side hangs up. Raises RuntimeError where a library has started threads."""
    if sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("forking is not safe: this process has more than one thread")
    gc.freeze()  # what is loaded now is never collected, so its pages stay shared with the children
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, _DESCRIPTORS)
        if not data:
            return
        request = json.loads(data)
        answer: dict[str, Any]
        try:
            answer = _spawned(control, serve, request, descriptors) if request["op"] == "spawn" else _ended(request)
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        control.sendall(json.dumps(answer).encode())


def _spawned(control: socket.socket, serve: Serve, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    pid = os.fork()
    if pid:
        return {"pid": pid}
    code = 1
    try:
        confine.die_with_parent()
        control.close()
        os.setsid()
        socket_fd, image_fd, stderr_fd = descriptors
        os.dup2(stderr_fd, _STDERR)
        os.close(stderr_fd)
        serve(socket_fd, image_fd, request)
        code = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not return into the loop above
        os.write(_STDERR, f"{type(error).__name__}: {error}".encode()[:500])
    finally:
        os._exit(code)


def _ended(request: dict[str, Any]) -> dict[str, Any]:
    """Kills and reaps; a child that already died keeps the status it died with."""
    pid = int(request["pid"])
    os.kill(pid, signal.SIGKILL)
    end_s = time.monotonic() + _REAP_S
    while time.monotonic() < end_s:
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            return {"code": os.waitstatus_to_exitcode(status)}
        time.sleep(0.0005)
    return {"code": 0}  # stuck in the kernel: it is dead to us, and one zombie more


def main(arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    clip = warm_up()
    with socket.socket(fileno=int(arguments[0])) as control:
        run(control, partial(child.confined, clip=clip))


if __name__ == "__main__":
    main(sys.argv[1:])
