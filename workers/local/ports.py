"""Ports on loopback."""

from __future__ import annotations

import socket
import time

from pipeline.errors import Reason, UserError
from workers.local.watched import POLL_S

PORT_DEADLINE_S = 1.0


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int, setting: str) -> None:
    """UserError that names `setting` if `port` stays taken; a server of ours, just killed, may still hold it."""
    deadline = time.monotonic() + PORT_DEADLINE_S
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    detail = f"port {port} cannot be used ({error.strerror}); set {setting} to a free one"
                    raise UserError(Reason.BAD_SETTING, detail) from error
        time.sleep(POLL_S)
