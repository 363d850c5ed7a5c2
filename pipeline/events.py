"""Queue messages → references to videos. Knows S3, SNS-wrapped, EventBridge, test and our own messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import unquote_plus

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from pipeline.errors import PermanentError, Reason
from pipeline.media import ObjectRef

MAX_MESSAGE_CHARS = 1_100_000  # SQS takes 1 MiB

Bucket = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]
"""A bucket's name; access points and the like, which are addressed otherwise, are not what S3 sends events about."""
Key = Annotated[str, StringConstraints(min_length=1, max_length=3072)]
Word = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]{0,1024}$")]
"""Travels in HTTP headers: a version id, an ETag, a hash or a trace id."""
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Bytes; the ledger keeps them as BIGINT."""


@dataclass(frozen=True, slots=True)
class VideoEvent:
    """One video that wants a decision. `decision_hash` names the policy; None where the active one applies."""

    ref: ObjectRef
    event_at: datetime | None = None
    decision_hash: str | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """What a message holds: videos, or nothing but a test. `kind` is `s3`, `sns`, `eventbridge`, `own` or `test`."""

    kind: str
    events: tuple[VideoEvent, ...]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _S3Bucket(_Wire):
    name: Bucket


class _S3Object(_Wire):
    key: Key
    size: Size | None = None
    e_tag: Word | None = Field(None, alias="eTag")
    version_id: Word | None = Field(None, alias="versionId")


class _S3Entity(_Wire):
    bucket: _S3Bucket
    object: _S3Object


class _S3Record(_Wire):
    event_source: Literal["aws:s3"] = Field(alias="eventSource")
    event_name: Annotated[str, StringConstraints(pattern=r"^(s3:)?ObjectCreated:")] = Field(alias="eventName")
    event_time: datetime | None = Field(None, alias="eventTime")
    s3: _S3Entity


class _EventBridgeObject(_Wire):
    key: Key
    size: Size | None = None
    etag: Word | None = None
    version_id: Word | None = Field(None, alias="version-id")


class _EventBridgeDetail(_Wire):
    bucket: _S3Bucket
    object: _EventBridgeObject


class _EventBridgeEvent(_Wire):
    source: Literal["aws.s3"]
    detail_type: Literal["Object Created"] = Field(alias="detail-type")
    time: datetime | None = None
    detail: _EventBridgeDetail


class VideoMessage(BaseModel):
    """Our own message, sent by backfill and reconcile."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = 1
    type: Literal["videosieve.video"] = "videosieve.video"
    bucket: Bucket
    key: Key
    version_id: Word | None = None
    etag: Word | None = None
    size_bytes: Size | None = None
    decision_hash: Word | None = None
    trace_id: Word | None = None

    @classmethod
    def of(cls, ref: ObjectRef, *, decision_hash: str | None, trace_id: str | None) -> VideoMessage:
        return cls(
            bucket=ref.bucket,
            key=ref.key,
            version_id=ref.version_id,
            etag=ref.etag,
            size_bytes=ref.size_bytes,
            decision_hash=decision_hash,
            trace_id=trace_id,
        )


def parse_message(body: str) -> ParsedMessage:
    """What `body` asks for. Raises PermanentError(UNKNOWN_MESSAGE) that says what is wrong with it."""
    try:
        return _parse(body, depth=0)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "message"
        raise _unknown(f"field `{field}`: {first['msg']}") from None


def _parse(body: str, depth: int) -> ParsedMessage:
    message = _json_object(body)
    match message:
        case {"Type": "Notification", "TopicArn": _, "Message": str(inner)} if depth == 0:
            parsed = _parse(inner, depth=1)
            return parsed if parsed.kind == "test" else ParsedMessage("sns", parsed.events)
        case {"Event": "s3:TestEvent", "Service": _}:
            return ParsedMessage("test", ())
        case {"Records": [_, *_] as records}:
            return ParsedMessage("s3", tuple(_s3_events(records)))
        case {"source": "aws.s3", "detail-type": _}:
            return ParsedMessage("eventbridge", (_eventbridge_event(message),))
        case {"type": "videosieve.video"}:
            return ParsedMessage("own", (_own_event(message),))
        case _:
            keys = ", ".join(sorted(str(key)[:40] for key in message)[:8]) or "nothing"
            raise _unknown(f"neither an S3 event, nor SNS, EventBridge or ours: it holds {keys}")


def _json_object(body: str) -> dict[str, Any]:
    if len(body) > MAX_MESSAGE_CHARS:
        raise _unknown(f"longer than {MAX_MESSAGE_CHARS} characters")
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise _unknown("not JSON") from None
    if not isinstance(message, dict):
        raise _unknown(f"a JSON {type(message).__name__}, not an object")
    return message


def _s3_events(records: Iterable[Any]) -> Iterable[VideoEvent]:
    for raw in records:
        record = _S3Record.model_validate(raw)
        stored = record.s3.object
        yield VideoEvent(
            ref=_ref(
                record.s3.bucket.name,
                unquote_plus(stored.key),  # S3 form-encodes keys in its own events, EventBridge does not
                stored.version_id,
                stored.e_tag,
                stored.size,
            ),
            event_at=record.event_time,
        )


def _eventbridge_event(message: dict[str, Any]) -> VideoEvent:
    event = _EventBridgeEvent.model_validate(message)
    stored = event.detail.object
    ref = _ref(event.detail.bucket.name, stored.key, stored.version_id, stored.etag, stored.size)
    return VideoEvent(ref=ref, event_at=event.time)


def _own_event(message: dict[str, Any]) -> VideoEvent:
    own = VideoMessage.model_validate(message)
    _without_nul(decision_hash=own.decision_hash, trace_id=own.trace_id)
    ref = _ref(own.bucket, own.key, own.version_id, own.etag, own.size_bytes)
    return VideoEvent(ref=ref, decision_hash=own.decision_hash, trace_id=own.trace_id)


def _ref(bucket: str, key: str, version_id: str | None, etag: str | None, size_bytes: int | None) -> ObjectRef:
    _without_nul(bucket=bucket, key=key, version_id=version_id, etag=etag)
    if version_id in ("", "null"):  # S3's name for "written before versioning": such objects go by ETag
        version_id = None
    return ObjectRef(bucket, key, version_id, (etag or "").strip('"') or None, size_bytes)


def _without_nul(**fields: str | None) -> None:
    """Refuses what PostgreSQL cannot keep as text, so that it is the message's fault and not an error of ours."""
    for name, value in fields.items():
        if value is not None and "\x00" in value:
            raise _unknown(f"`{name}` holds a NUL character")


def _unknown(detail: str) -> PermanentError:
    return PermanentError(Reason.UNKNOWN_MESSAGE, f"not a message about a video: {detail}")
