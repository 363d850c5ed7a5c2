"""/v1/reviews: questions that wait for a person, their evidence, and the answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Response

from pipeline.errors import PermanentError, Reason
from pipeline.runs import ReviewDetail, ReviewItem
from workers.api.auth import ApiTenant, AuthenticatedRoute, bearer_scheme
from workers.api.faults import not_found
from workers.api.ports import ApiContext, Context
from workers.api.results import Document, evidence_pictures, picture_signer, read_document
from workers.api.schemas import (
    FAULT_RESPONSES,
    NOT_FOUND_RESPONSE,
    QUESTION_PATTERN,
    AnswerEntry,
    AnswerRequest,
    ReviewEntry,
    ReviewFull,
    ReviewPage,
)
from workers.logs import get_logger

QuestionName = Annotated[str, Path(pattern=QUESTION_PATTERN, description="the question's name in its policy")]

router = APIRouter(
    prefix="/v1/reviews",
    tags=["reviews"],
    route_class=AuthenticatedRoute,
    dependencies=[Depends(bearer_scheme)],
    responses=FAULT_RESPONSES,
)


@router.get("", summary="Questions that wait for a person")
def list_reviews(
    context: ApiContext,
    tenant: ApiTenant,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> ReviewPage:
    found = context.ledger.reviews(tenant.id, limit=limit, offset=offset)
    return ReviewPage(
        reviews=[ReviewEntry(**_entry(item)) for item in found],
        limit=limit,
        offset=offset,
        next_offset=offset + limit if len(found) == limit else None,
    )


@router.get("/{run_id}/{question}", responses=NOT_FOUND_RESPONSE, summary="One question, its evidence and history")
def read_review(run_id: UUID, question: QuestionName, context: ApiContext, tenant: ApiTenant) -> ReviewFull:
    detail = context.ledger.review(run_id, question, tenant.id)
    if detail is None:
        raise not_found("review")
    return _full(context, detail)


@router.post(
    "/{run_id}/{question}/answers",
    status_code=HTTPStatus.CREATED,
    responses=NOT_FOUND_RESPONSE,
    summary="Answer a question, or overrule an answer",
)
def add_answer(
    run_id: UUID,
    question: QuestionName,
    request: AnswerRequest,
    context: ApiContext,
    tenant: ApiTenant,
    response: Response,
) -> ReviewFull:
    """The answer is added to the history and holds until a later one; the run is decided when none waits any more."""
    if context.ledger.review(run_id, question, tenant.id) is None:
        raise not_found("review")
    detail = context.ledger.answer(
        run_id, question, answer=request.answer, who=request.who, why=request.why, tenant_id=tenant.id
    )
    context.metrics.reviews_answered.labels(answer=request.answer.value).inc()
    get_logger().info(
        "review_answered", run_id=str(run_id), question=question, answer=request.answer.value, tenant_id=str(tenant.id)
    )
    response.headers["Location"] = _url(detail.item)
    return _full(context, detail)


def _full(context: Context, detail: ReviewDetail) -> ReviewFull:
    document = _document(context, detail)
    sign, images_expire_at = picture_signer(context)
    question = document.get("policy", {}).get("questions", {}).get(detail.item.question, {})
    return ReviewFull(
        **_entry(detail.item),
        text=question.get("text"),
        sensitive=question.get("sensitive", True),
        machine_answer=detail.machine_answer,
        answer=detail.answer,
        images=evidence_pictures(document, detail.item.evidence, sign),
        images_expire_at=images_expire_at,
        history=[AnswerEntry(answer=a.answer, who=a.who, why=a.why, at=a.at) for a in detail.history],
    )


def _document(context: Context, detail: ReviewDetail) -> Document:
    """The result document; empty where it was erased: its history can still be read."""
    if detail.result_key is None:
        return {}
    try:
        return read_document(context, detail.result_key)
    except PermanentError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        return {}


def _entry(item: ReviewItem) -> dict[str, Any]:
    return {
        "run_id": item.run_id,
        "question": item.question,
        "video": item.video,
        "policy": item.policy,
        "score": item.score,
        "reason": item.reason,
        "since": item.since,
        "evidence": list(item.evidence),
        "url": _url(item),
    }


def _url(item: ReviewItem) -> str:
    return f"/v1/reviews/{item.run_id}/{item.question}"
