"""/healthz, /readyz and /metrics: for load balancers and Prometheus, without a key."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pipeline.errors import VideosieveError
from workers.api.faults import RETRY_AFTER_S, fault_body
from workers.api.ports import ApiContext, Context
from workers.api.schemas import FaultBody
from workers.logs import get_logger

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process is up")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get(
    "/readyz",
    responses={503: {"model": FaultBody, "description": "What cannot be reached, under `checks`."}},
    summary="The database and the buckets can be reached",
)
def readyz(context: ApiContext) -> JSONResponse:
    checks = {name: _outcome(name, check) for name, check in _checks(context).items()}
    failed = {name: outcome for name, outcome in checks.items() if outcome != "ok"}
    if not failed:
        return JSONResponse({"status": "ok", "checks": checks})
    body: dict[str, Any] = fault_body(next(iter(failed.values())), f"not reachable: {', '.join(failed)}")
    return JSONResponse(
        {**body, "checks": checks}, HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": str(RETRY_AFTER_S)}
    )


@router.get("/metrics", response_class=Response, summary="Prometheus exposition")
async def metrics(context: ApiContext) -> Response:
    return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _checks(context: Context) -> dict[str, Callable[[], object]]:
    storage, objects = context.settings.storage, context.objects
    return {
        "database": context.ledger.check,
        "originals_bucket": lambda: objects.check_bucket(storage.originals_bucket),
        "artifacts_bucket": lambda: objects.check_bucket(storage.artifacts_bucket),
    }


def _outcome(name: str, check: Callable[[], object]) -> str:
    """`ok`, or the reason why not."""
    try:
        check()
    except VideosieveError as error:
        get_logger().warning("api_not_ready", check=name, reason=error.reason.value, detail=error.detail)
        return error.reason.value
    return "ok"
