"""An OpenAI-compatible server that does what its script says: behaves, or misbehaves in a chosen way.

A *behaviour* answers one request. `ScriptedServer` plays a list of them, one a request, then its default for ever.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "Org/Model-7B"
USAGE = {"prompt_tokens": 1200, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 900}}


@dataclass(slots=True)
class Call:
    """One chat request as the server got it, and the means to answer it."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    handler: BaseHTTPRequestHandler
    stopping: threading.Event

    @property
    def questions(self) -> list[str]:
        return list(self._answers["required"])

    @property
    def _answers(self) -> dict[str, Any]:
        schema: dict[str, Any] = self.body["response_format"]["json_schema"]["schema"]["properties"]["answers"]
        return schema

    @property
    def text(self) -> str:
        """Everything that was said, without the pictures."""
        parts = []
        for message in self.body["messages"]:
            content = message["content"]
            parts += [content] if isinstance(content, str) else [p["text"] for p in content if p["type"] == "text"]
        return "\n".join(parts)

    @property
    def images(self) -> list[bytes]:
        """The JPEG files that were shown."""
        return [
            base64.b64decode(part["image_url"]["url"].partition(",")[2])
            for message in self.body["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]

    # answering

    def head(self, status: int = 200, content_type: str = "text/event-stream", **headers: str) -> None:
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", content_type)
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()

    def raw(self, data: bytes) -> None:
        self.handler.wfile.write(data)
        self.handler.wfile.flush()

    def event(self, event: Mapping[str, Any]) -> None:
        self.raw(b"data: " + json.dumps(event).encode() + b"\n\n")

    def piece(self, text: str, logprobs: Any = None, **choice: Any) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "logprobs": logprobs, **choice}]})

    def end(self, finish_reason: str | None = "stop", usage: Any = USAGE) -> None:
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
        if usage is not None:
            self.event({"choices": [], "usage": usage})
        self.raw(b"data: [DONE]\n\n")

    def hang(self) -> None:
        """Say nothing more until the server closes."""
        self.stopping.wait(60)

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handler.connection.close()


Behaviour = Callable[[Call], None]


def says(
    text: str | Callable[[Call], str],
    *,
    finish_reason: str | None = "stop",
    usage: Any = USAGE,
    piece_chars: int = 8,
) -> Behaviour:
    """Streams `text` in pieces, as an engine would."""

    def behave(call: Call) -> None:
        said = text if isinstance(text, str) else text(call)
        call.head()
        for start in range(0, len(said), piece_chars):
            call.piece(said[start : start + piece_chars])
        call.end(finish_reason, usage)

    return behave


def statement(answer: str = "no", score: int = 3, images: Sequence[int] = ()) -> dict[str, Any]:
    return {"answer": answer, "score": score, "images": list(images)}


def answers(
    default: Mapping[str, Any] | None = None, *, seen: str = "a scene", **given: Mapping[str, Any]
) -> Behaviour:
    """A valid answer to whatever is asked: `given` by question, `default` (a no) for the others."""

    def text(call: Call) -> str:
        found = {question: given.get(question, default or statement()) for question in call.questions}
        return json.dumps({"seen": seen, "answers": found})

    return says(text)


def status(code: int, body: str | None = None, **headers: str) -> Behaviour:
    """Answers with an error."""

    def behave(call: Call) -> None:
        data = (body if body is not None else json.dumps({"error": {"message": f"status {code}"}})).encode()
        call.head(code, "application/json", Content_Length=str(len(data)), **headers)
        call.raw(data)

    return behave


@dataclass
class ScriptedServer:
    """A server on a free port of the loopback. Thread-safe; keeps every request that it got, unless told not to."""

    script: list[Behaviour] = field(default_factory=list)
    default: Behaviour = field(default_factory=answers)
    models: Sequence[Mapping[str, Any]] = ({"id": MODEL, "max_model_len": 32768},)
    calls: list[Call] = field(default_factory=list)
    most_at_once: int = 0
    metrics: str | None = None
    is_up: bool = True
    keep: bool = True

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._now = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if owner.is_up:
                    owner._answer(Call(json.loads(body), dict(self.headers), self, owner._stopping))
                else:
                    owner._answer_down(self)

            def do_GET(self) -> None:
                found: dict[str, str | None] = {
                    "/v1/models": json.dumps({"data": list(owner.models)}),
                    "/metrics": owner.metrics,
                }
                text = found.get(self.path) if owner.is_up else None
                data = (text or "nothing here").encode()
                self.send_response(200 if text is not None else 404 if owner.is_up else 503)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """A client that hung up is what many tests want."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, call: Call) -> None:
        with self._lock:
            if self.keep:
                self.calls.append(call)
            behave = self.script.pop(0) if self.script else self.default
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            with contextlib.suppress(OSError):
                behave(call)
        finally:
            with self._lock:
                self._now -= 1
        call.handler.close_connection = True

    def _answer_down(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(503)
        handler.send_header("Content-Length", "0")
        handler.end_headers()


@contextmanager
def serving(*script: Behaviour, default: Behaviour | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(list(script), default or answers())
    try:
        yield server
    finally:
        server.close()
