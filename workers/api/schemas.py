"""The shapes of requests and answers, as /openapi.json describes them."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from pipeline.runs import UploadStatus
from pipeline.verdict import Answer

QUESTION_PATTERN = r"^[a-z][a-z0-9_]{0,63}$"
_CONTENT_TYPE_PATTERN = r"^(?i:video/[a-z0-9][a-z0-9.+-]{0,100}|application/octet-stream)$"
_TEXT_MAX_CHARS = 2000


def _without_controls(text: str) -> str:
    """Line breaks and tabs are text; other control characters and halves of characters cannot be stored."""
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in text if char not in "\n\r\t"):
        raise ValueError("control characters are not allowed")
    return text


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("only printable characters on one line are allowed")
    return text


Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200), AfterValidator(_one_line)]
Text = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=_TEXT_MAX_CHARS),
    AfterValidator(_without_controls),
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class UploadRequest(_Request):
    """What is going to be uploaded."""

    filename: str = Field(description="its name; only the last component is kept", examples=["holiday.mp4"])
    content_type: Annotated[str, StringConstraints(to_lower=True, pattern=_CONTENT_TYPE_PATTERN)] = Field(
        "application/octet-stream", description="video/* or application/octet-stream", examples=["video/mp4"]
    )
    size_bytes: int | None = Field(
        None, ge=1, description="its size, where known: too large a file is refused now rather than by storage"
    )


class UploadCreated(_Answer):
    """Where to send the bytes: one multipart POST to `url`, every field of `fields` in order, the file last."""

    upload_id: UUID
    state: Literal["awaiting_upload"] = "awaiting_upload"
    url: str = Field(description="where to POST the file")
    fields: dict[str, str] = Field(description="form fields, to be sent as they are, before `file`")
    key: str = Field(description="the object's key")
    expires_at: datetime = Field(description="until when storage accepts the file")
    max_bytes: int
    trace_id: str = Field(description="runs from here to the verdict, in logs and results")
    status_url: str = Field(description="where to ask for its state, relative to this API")


class UploadState(_Answer):
    """How far an upload got. `state` is `awaiting_upload`, then the state of its run."""

    upload_id: UUID
    filename: str
    state: str = Field(examples=["decided"])
    created_at: datetime
    expires_at: datetime
    trace_id: str
    run_id: UUID | None
    reason: str | None
    detail: str | None


class Unfinished(_Answer):
    """There is no result yet: ask again after `retry_after_s`."""

    state: str = Field(examples=["processing"])
    retry_after_s: int
    reason: str | None
    detail: str | None


class ResultVerdict(BaseModel):
    """The answer that holds to one question, and whose it is."""

    model_config = ConfigDict(extra="allow")

    question: str
    answer: Answer = Field(description="a person's latest answer where one was given, else the machine's")
    machine_answer: Answer
    answered_by: str | None = Field(description="who answered; null where the machine's answer holds")
    score: float
    stage: str
    evidence: list[int] = Field(description="indices into `keyframes`")


class Rejection(_Answer):
    reason: str | None = Field(examples=["not_a_video"])
    detail: str | None
    advice: str | None = Field(None, description="a sentence for the sender, where the file is at fault")


class Result(BaseModel):
    """What `videosieve analyze --json` prints, with signed pictures and people's answers; or `rejected`."""

    model_config = ConfigDict(extra="allow")

    upload_id: UUID
    run_id: UUID
    trace_id: str
    state: str = Field(examples=["decided"])
    keyframes: list[dict[str, Any]] = Field([], description="`image` is a URL that is valid until `images_expire_at`")
    verdicts: list[ResultVerdict] = []
    images_expire_at: datetime | None = None
    rejected: Rejection | None = Field(None, description="in place of keyframes and verdicts: why there are none")


class ReviewEntry(_Answer):
    """One question about one video that waits for a person, or did."""

    run_id: UUID
    question: str
    video: str = Field(examples=["s3://videosieve-originals/uploads/…/holiday.mp4"])
    policy: str
    score: float
    reason: str | None
    since: datetime
    evidence: list[int]
    url: str = Field(description="where to read and answer it, relative to this API")


class ReviewPage(_Answer):
    """Questions that wait, the longest-waiting first. Answered ones leave the list, so take pages from its front."""

    reviews: list[ReviewEntry]
    limit: int
    offset: int
    next_offset: int | None


class ReviewPicture(_Answer):
    keyframe: int
    t_s: float
    image: str = Field(description="URL, valid until `images_expire_at`")


class AnswerEntry(_Answer):
    answer: Answer
    who: str
    why: str
    at: datetime


class ReviewFull(ReviewEntry):
    """A review with its evidence, the answer that holds, and everything that was answered, oldest first."""

    text: str | None = Field(description="the question in words")
    sensitive: bool = Field(description="whether its pictures should be blurred until somebody asks to see them")
    machine_answer: Answer
    answer: Answer
    images: list[ReviewPicture]
    images_expire_at: datetime
    history: list[AnswerEntry]


class AnswerRequest(_Request):
    """A person's answer. It is added to the history; the latest one holds."""

    answer: Literal[Answer.POSITIVE, Answer.NEGATIVE]
    who: Line = Field(description="who answers", examples=["ada@example.org"])
    why: Text = Field(description="the grounds, for whoever reads it later", examples=["a face in the mirror, left"])


class Fault(_Answer):
    reason: str = Field(description="a stable word", examples=["not_found"])
    detail: str = Field(description="a sentence for people")


class FaultBody(_Answer):
    """Every answer that is no success."""

    error: Fault


def upload_state(upload: UploadStatus, *, reason: str | None, detail: str | None) -> UploadState:
    return UploadState(
        upload_id=upload.upload_id,
        filename=upload.filename,
        state=upload.state,
        created_at=upload.created_at,
        expires_at=upload.expires_at,
        trace_id=upload.trace_id,
        run_id=upload.run_id,
        reason=reason,
        detail=detail,
    )


FAULT_RESPONSES: dict[int | str, dict[str, Any]] = {
    401: {"model": FaultBody, "description": "No key, or one that is not known."},
    413: {"model": FaultBody, "description": "The request, or the file it announces, is too large."},
    422: {"model": FaultBody, "description": "`bad_input`: the detail names the field."},
    500: {"model": FaultBody, "description": "`internal_error`: a fault of ours, logged under X-Request-Id."},
    503: {"model": FaultBody, "description": "A dependency does not answer; see Retry-After."},
}
NOT_FOUND_RESPONSE: dict[int | str, dict[str, Any]] = {
    404: {"model": FaultBody, "description": "There is no such thing, or it belongs to another tenant."}
}
