"""Errors as HTTP answers: one JSON shape, `{"error": {"reason", "detail"}}`, whatever went wrong.

What is ours to mend (a database's address, a missing bucket) goes to the log; the caller learns what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pipeline.errors import PermanentError, Reason, TransientError, UserError, VideosieveError
from workers.logs import get_logger

UNAUTHENTICATED = "unauthenticated"
METHOD_NOT_ALLOWED = "method_not_allowed"
UPLOAD_EXPIRED = "upload_expired"
REQUEST_TIMEOUT = "request_timeout"

RETRY_AFTER_S = 5
_FAULTS_NAMED = 5

_REASONS_OF_STATUS = {
    HTTPStatus.NOT_FOUND: Reason.NOT_FOUND.value,
    HTTPStatus.METHOD_NOT_ALLOWED: METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Reason.TOO_LARGE.value,
}


class ApiError(Exception):
    """An answer other than success, raised by an endpoint."""

    def __init__(
        self, status: HTTPStatus, reason: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status.value} {reason}: {detail}")
        self.status = status
        self.reason = reason
        self.detail = detail
        self.headers = dict(headers or {})


def not_found(what: str) -> ApiError:
    """Also for what belongs to another tenant: that it exists is nobody else's business."""
    return ApiError(HTTPStatus.NOT_FOUND, Reason.NOT_FOUND.value, f"there is no such {what}")


def fault_body(reason: str, detail: str) -> dict[str, dict[str, str]]:
    return {"error": {"reason": reason, "detail": detail}}


def fault_response(status: int, reason: str, detail: str, *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(fault_body(reason, detail), status, headers=dict(headers or {}))


def internal_error() -> JSONResponse:
    """The answer to what nobody foresaw: it says nothing of the inside."""
    return fault_response(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        Reason.INTERNAL_ERROR.value,
        "a fault of ours; it is in our log under this answer's X-Request-Id",
    )


def install_fault_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(VideosieveError, _on_videosieve_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)


def _on_api_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)  # noqa: S101 - registered for this class; narrows the type
    return fault_response(error.status, error.reason, error.detail, headers=error.headers)


def _on_videosieve_error(_request: Request, error: Exception) -> JSONResponse:
    match error:
        case TransientError():
            get_logger().warning("api_dependency_failed", reason=error.reason.value, detail=error.detail)
            retry_after_s = max(1, math.ceil(error.retry_after_s or RETRY_AFTER_S))
            return fault_response(
                HTTPStatus.SERVICE_UNAVAILABLE,
                error.reason.value,
                f"something the API depends on does not answer; try again in {retry_after_s} s",
                headers={"Retry-After": str(retry_after_s)},
            )
        case PermanentError(reason=Reason.NOT_FOUND):
            return fault_response(HTTPStatus.NOT_FOUND, error.reason.value, "what was asked for is no longer there")
        case UserError(reason=Reason.BAD_INPUT):
            return fault_response(HTTPStatus.UNPROCESSABLE_ENTITY, error.reason.value, error.detail)
        case VideosieveError():
            get_logger().error("api_failed", reason=error.reason.value, detail=error.detail)
    return internal_error()


def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's own refusals: unknown routes, wrong methods, bodies that are no JSON."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class; narrows the type
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            detail = "there is no such route; /openapi.json lists them"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            detail = f"this route does not take {request.method[:16]}"
        case _:
            detail = str(error.detail)
    reason = _REASONS_OF_STATUS.get(HTTPStatus(error.status_code), Reason.BAD_INPUT.value)
    return fault_response(error.status_code, reason, detail, headers=error.headers)


def _on_invalid_request(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class; narrows the type
    faults = [_describe(fault) for fault in error.errors()[:_FAULTS_NAMED]]
    return fault_response(HTTPStatus.UNPROCESSABLE_ENTITY, Reason.BAD_INPUT.value, "; ".join(faults))


def _describe(fault: Mapping[str, Any]) -> str:
    """One fault as `field: what is wrong`. The value itself is never repeated."""
    where, *path = (str(part) for part in fault["loc"])
    if fault["type"] == "json_invalid":
        return f"body: not JSON at character {path[0] if path else 0}"
    if not path:
        return f"{where}: send a JSON object with Content-Type: application/json"
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(path)}: {message[:1].lower()}{message[1:]}"
