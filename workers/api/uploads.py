"""/v1/uploads: where to send a video, how far it got, what came out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Depends, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from pipeline.errors import Reason
from pipeline.runs import UploadStatus
from pipeline.verdict import RunState
from workers.api.auth import ApiTenant, AuthenticatedRoute, bearer_scheme
from workers.api.faults import UPLOAD_EXPIRED, ApiError, not_found
from workers.api.filenames import safe_filename
from workers.api.ports import ApiContext, Context
from workers.api.results import ENDED_WITHOUT_RESULT, picture_signer, read_document, rejection, shown_document
from workers.api.schemas import (
    FAULT_RESPONSES,
    NOT_FOUND_RESPONSE,
    Result,
    Unfinished,
    UploadCreated,
    UploadRequest,
    UploadState,
    upload_state,
)
from workers.logs import get_logger

AWAITING_UPLOAD = "awaiting_upload"
_POLL_S = {AWAITING_UPLOAD: 5, RunState.QUEUED: 5, RunState.PROCESSING: 2}
_POLL_SELDOM_S = 60

router = APIRouter(
    prefix="/v1/uploads",
    tags=["uploads"],
    route_class=AuthenticatedRoute,
    dependencies=[Depends(bearer_scheme)],
    responses=FAULT_RESPONSES,
)


@router.post("", status_code=HTTPStatus.CREATED, summary="Announce a video and learn where to send it")
def create_upload(request: UploadRequest, context: ApiContext, tenant: ApiTenant, response: Response) -> UploadCreated:
    """The file then goes straight to storage, as one multipart POST with the `fields`, in order, and `file` last."""
    settings = context.settings
    max_bytes, expires_s = settings.api.max_upload_bytes, settings.api.upload_expires_s
    if request.size_bytes is not None and request.size_bytes > max_bytes:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            Reason.TOO_LARGE.value,
            f"size_bytes: {request.size_bytes} bytes are more than the {max_bytes} that are taken",
        )
    upload_id, trace_id, filename = uuid4(), uuid4().hex, safe_filename(request.filename)
    key = f"uploads/{tenant.id}/{upload_id}/{filename}"
    bucket = settings.storage.originals_bucket
    expires_at = datetime.now(UTC) + timedelta(seconds=expires_s)
    url, fields = context.objects.presigned_post(
        bucket,
        key,
        max_bytes=request.size_bytes or max_bytes,
        min_bytes=request.size_bytes or 1,
        expires_s=expires_s,
        content_type=request.content_type,
    )
    context.ledger.create_upload(
        tenant.id,
        bucket=bucket,
        key=key,
        filename=filename,
        content_type=request.content_type,
        max_bytes=max_bytes,
        expires_at=expires_at,
        trace_id=trace_id,
        upload_id=upload_id,
    )
    context.metrics.uploads_created.inc()
    get_logger().info("upload_created", upload_id=str(upload_id), trace_id=trace_id, tenant_id=str(tenant.id))
    response.headers["Location"] = status_url = f"/v1/uploads/{upload_id}"
    return UploadCreated(
        upload_id=upload_id,
        url=url,
        fields=fields,
        key=key,
        expires_at=expires_at,
        max_bytes=max_bytes,
        trace_id=trace_id,
        status_url=status_url,
    )


@router.get("/{upload_id}", responses=NOT_FOUND_RESPONSE, summary="How far an upload got")
def read_upload(upload_id: UUID, context: ApiContext, tenant: ApiTenant) -> UploadState:
    upload = _upload(context, tenant.id, upload_id)
    reason, detail = _standing(upload)
    return upload_state(upload, reason=reason, detail=detail)


@router.get(
    "/{upload_id}/result",
    responses={
        **NOT_FOUND_RESPONSE,
        200: {"model": Result, "description": "The result, or why there is none."},
        202: {"model": Unfinished, "description": "Not finished; see Retry-After."},
    },
    summary="The verdicts with their evidence",
)
def read_result(upload_id: UUID, context: ApiContext, tenant: ApiTenant) -> JSONResponse:
    upload = _upload(context, tenant.id, upload_id)
    run = context.ledger.run(upload.run_id, tenant.id) if upload.run_id is not None else None
    if run is None or not (run.result_key or run.state in ENDED_WITHOUT_RESULT):
        return _unfinished(upload)
    body: dict[str, Any] = {"upload_id": upload.upload_id, "run_id": run.run_id, "trace_id": run.trace_id}
    if run.result_key is None or run.state in ENDED_WITHOUT_RESULT:
        body |= rejection(run)
    else:
        sign, images_expire_at = picture_signer(context)
        body |= shown_document(read_document(context, run.result_key), run, sign)
        body["images_expire_at"] = images_expire_at
    return JSONResponse(jsonable_encoder(body))


def _upload(context: Context, tenant_id: UUID, upload_id: UUID) -> UploadStatus:
    upload = context.ledger.upload(tenant_id, upload_id)
    if upload is None:
        raise not_found("upload")
    return upload


def _standing(upload: UploadStatus) -> tuple[str | None, str | None]:
    """Reason and detail; an upload that nothing came of in time says so."""
    if upload.state == AWAITING_UPLOAD and upload.expires_at < datetime.now(UTC):
        return (
            UPLOAD_EXPIRED,
            f"no file has been seen, and since {upload.expires_at:%FT%TZ} none is taken; create a new upload",
        )
    return upload.reason, upload.detail


def _unfinished(upload: UploadStatus) -> JSONResponse:
    reason, detail = _standing(upload)
    retry_after_s = _POLL_SELDOM_S if reason == UPLOAD_EXPIRED else _POLL_S.get(upload.state, _POLL_SELDOM_S)
    body = Unfinished(state=upload.state, retry_after_s=retry_after_s, reason=reason, detail=detail)
    return JSONResponse(body.model_dump(mode="json"), HTTPStatus.ACCEPTED, headers={"Retry-After": str(retry_after_s)})
