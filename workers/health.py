"""What a worker says of itself over HTTP: `/metrics`, `/healthz` (does it get on?) and `/readyz` (may it work?)."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from pipeline.errors import Reason, UserError

Troubles = Callable[[], dict[str, str]]
"""What is wrong, by its name; empty where all is well."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        pass


@contextmanager
def serving(
    host: str, port: int, registry: CollectorRegistry, *, health: Troubles, readiness: Troubles
) -> Iterator[int]:
    """Serve for the length of the `with` block; the port. Raises UserError where it is taken."""
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match environ.get("PATH_INFO"):
            case "/healthz":
                return _answer(health(), start_response)
            case "/readyz":
                return _answer(health() | readiness(), start_response)
            case _:
                found: Iterable[bytes] = metrics(environ, start_response)
                return found

    kind = _ServerV6 if ":" in host else _Server
    try:
        server = make_server(host, port, app, server_class=kind, handler_class=_Silent)
    except OSError as error:
        raise UserError(
            Reason.BAD_SETTING,
            f"/metrics cannot listen on {host}:{port} ({error.strerror}): "
            "set VIDEOSIEVE_WORKER__METRICS_PORT to a free port, or to 0 for any",
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(troubles: dict[str, str], start_response: Callable[..., Any]) -> Iterable[bytes]:
    status, word = ("503 Service Unavailable", "failing") if troubles else ("200 OK", "ok")
    start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
    return [json.dumps({"status": word, "troubles": troubles}).encode() + b"\n"]
