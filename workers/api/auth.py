"""Bearer keys: every route of an `AuthenticatedRoute` router knows its tenant before it reads anything else."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from pipeline.runs import Tenant
from workers.api.faults import UNAUTHENTICATED, ApiError
from workers.api.ports import LedgerPort

_HEADER = re.compile(r"bearer +(vs_[A-Za-z0-9_-]{1,200}) *", re.IGNORECASE | re.ASCII)

bearer_scheme = HTTPBearer(
    auto_error=False, scheme_name="api_key", bearerFormat="vs_…", description="A tenant's API key."
)
"""Documents the scheme in /openapi.json; `AuthenticatedRoute` enforces it."""


class AuthenticatedRoute(APIRoute):
    """A route that answers 401 without a valid key, before the body is parsed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def authenticated(request: Request) -> Response:
            ledger: LedgerPort = request.app.state.context.ledger
            headers = request.headers.getlist("authorization")
            request.state.tenant = await run_in_threadpool(_authenticate, ledger, headers)
            return await handle(request)

        return authenticated


def _authenticate(ledger: LedgerPort, headers: list[str]) -> Tenant:
    if not headers:
        raise _refusal("send the API key as `Authorization: Bearer vs_…`", "")
    found = _HEADER.fullmatch(headers[0]) if len(headers) == 1 else None
    if found is None:
        raise _refusal("the Authorization header is not of the form `Bearer vs_…`", ', error="invalid_request"')
    tenant = ledger.authenticate(found[1])
    if tenant is None:
        raise _refusal("the API key is not known, or was withdrawn", ', error="invalid_token"')
    return tenant


def _refusal(detail: str, challenge: str) -> ApiError:
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        UNAUTHENTICATED,
        detail,
        headers={"WWW-Authenticate": f'Bearer realm="videosieve"{challenge}'},
    )


def _tenant(request: Request) -> Tenant:
    tenant: Tenant = request.state.tenant
    return tenant


ApiTenant = Annotated[Tenant, Depends(_tenant)]
