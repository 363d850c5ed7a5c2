"""Around every request: its id, one log line, its metrics, a bound on its body, and the answer to the unforeseen."""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import Reason
from workers.api.faults import REQUEST_TIMEOUT, fault_response, internal_error
from workers.logs import get_logger
from workers.metrics import Metrics

MAX_BODY_BYTES = 64 * 1024
BODY_DEADLINE_S = 30.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "other"


class AccessLog:
    """Gives the request an id, logs and counts it, and turns what nobody foresaw into a plain 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        started = time.perf_counter()
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")  # answers hold signed URLs
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except Exception:  # noqa: BLE001 - the one place for the unforeseen: it must be logged and answered
                get_logger().exception("api_crashed")
                if status is None:
                    await internal_error()(scope, receive, send_with_id)
            self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int | None, taken_s: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        route = _route(scope)
        shown = str(status) if status is not None else "none"  # none: the client left before it was answered
        self._metrics.api_requests.labels(method=method, route=route, status=shown).inc()
        self._metrics.api_seconds.labels(route=route).observe(taken_s)
        tenant = scope.get("state", {}).get("tenant")
        get_logger().info(
            "api_request",
            method=method,
            route=route,
            status=status,
            ms=round(taken_s * 1000, 1),
            tenant_id=str(tenant.id) if tenant is not None else None,
        )


class BodyLimit:
    """Takes the whole body before anything else runs: at most MAX_BODY_BYTES, within BODY_DEADLINE_S."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES, deadline_s: float = BODY_DEADLINE_S) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                body = await self._read(scope, receive)
        except _TooLargeError:
            await fault_response(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                Reason.TOO_LARGE.value,
                f"a request's body may have {self._max_bytes} bytes; videos go to the `url` of POST /v1/uploads",
                headers={"Connection": "close"},
            )(scope, receive, send)
            return
        except TimeoutError:
            await fault_response(
                HTTPStatus.REQUEST_TIMEOUT,
                REQUEST_TIMEOUT,
                f"the request's body did not arrive within {self._deadline_s:g} s",
                headers={"Connection": "close"},
            )(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None where the client left before it was complete."""
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._max_bytes:
            raise _TooLargeError
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise _TooLargeError
            if not message.get("more_body", False):
                return bytes(body)


class _TooLargeError(Exception):
    pass


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid4().hex


def _route(scope: Scope) -> str:
    """The template of the route that was taken, never the path itself: ids would make endless labels."""
    path: object = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else _OTHER
