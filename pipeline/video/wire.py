"""Messages between the parent and its decoder children: length-prefixed JSON, with raw bytes after it.

A message is two big-endian uint32, the lengths of the JSON and of the bytes, then both. The parent trusts nothing
that a child sends: sizes are bounded before anything is read, and JSON builds only plain values.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct(">II")
MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_PAYLOAD_BYTES = 80 * 1024 * 1024
MAX_RANGES = 4096


class WireError(Exception):
    """The other side sent something that is no message, or closed the connection."""


class Deadline:
    """How long may still be spent waiting for the other side; None waits for ever."""

    def __init__(self, wait_s: float | None) -> None:
        self._left_s = wait_s

    def receive(self, connection: socket.socket, buffer: memoryview) -> int:
        """One `recv_into`, its waiting charged. TimeoutError when no time is left."""
        return self._charged(connection, lambda: connection.recv_into(buffer))

    def send(self, connection: socket.socket, data: memoryview) -> int:
        """One `send`, its waiting charged. TimeoutError when no time is left."""
        return self._charged(connection, lambda: connection.send(data))

    def _charged(self, connection: socket.socket, operation: Any) -> int:
        if self._left_s is None:
            connection.settimeout(None)
            return int(operation())
        if self._left_s <= 0:
            raise TimeoutError
        connection.settimeout(self._left_s)
        start_s = time.monotonic()
        try:
            return int(operation())
        finally:
            self._left_s -= time.monotonic() - start_s


def send(connection: socket.socket, message: dict[str, Any], deadline: Deadline, parts: Sequence[bytes] = ()) -> None:
    """Sends one message. Raises TimeoutError, and WireError when the other side is gone."""
    text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    header = _HEADER.pack(len(text), sum(map(len, parts)))
    try:
        for part in (header + text, *parts):
            left = memoryview(part)
            while left:
                left = left[deadline.send(connection, left) :]
    except TimeoutError:
        raise
    except OSError as error:
        raise WireError(f"the connection broke: {error.strerror}") from error


def receive(connection: socket.socket, deadline: Deadline, max_payload_bytes: int) -> tuple[dict[str, Any], memoryview]:
    """The next message and its bytes. Raises TimeoutError and WireError."""
    json_bytes, payload_bytes = _HEADER.unpack(_exactly(connection, _HEADER.size, deadline))
    if json_bytes > MAX_JSON_BYTES or payload_bytes > max_payload_bytes:
        raise WireError(f"a message of {json_bytes} + {payload_bytes} bytes")
    try:
        message = json.loads(bytes(_exactly(connection, json_bytes, deadline)), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise WireError("a message that is no object")
    return message, _exactly(connection, payload_bytes, deadline)


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _exactly(connection: socket.socket, count: int, deadline: Deadline) -> memoryview:
    buffer = memoryview(bytearray(count))
    got = 0
    while got < count:
        try:
            received = deadline.receive(connection, buffer[got:])
        except TimeoutError:
            raise
        except OSError as error:
            raise WireError(f"the connection broke: {error.strerror}") from error
        if not received:
            raise WireError("the connection was closed")
        got += received
    return buffer
