"""What an engine's HTTP status means for us. Pure but for the clock that a date in `Retry-After` is held against."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from pipeline.chat import AnswerError, BrokenOffError
from pipeline.errors import Reason, TransientError, VideosieveError
from pipeline.models.chat_wire import shortened

MAX_RETRY_AFTER_S = 900.0
_OVERLOADED = {HTTPStatus.TOO_MANY_REQUESTS, 529}
_DENIED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_REFUSED = {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
_BLOCKED_CODES = {"content_filter", "content_policy_violation", "responsible_ai_policy_violation"}


def fault_of(status: int, retry_after: str | None, body: str) -> VideosieveError:
    """The error for an answer with another status than 200; `body` is its beginning, secrets masked."""
    said, code = _said(body)
    retry_after_s = retry_after_s_of(retry_after)
    if status in _OVERLOADED:
        return TransientError(
            Reason.VLM_BUSY, f"the engine asks for fewer requests: {said}", retry_after_s=retry_after_s
        )
    if status in _DENIED:
        return TransientError(
            Reason.VLM_UNAVAILABLE, f"the engine refuses the key (HTTP {status}): check VIDEOSIEVE_VLM__API_KEY; {said}"
        )
    if status in _REFUSED:
        if code in _BLOCKED_CODES:
            return AnswerError(Reason.VLM_BLOCKED, f"the engine blocked the request: {said}")
        return AnswerError(Reason.VLM_REQUEST_REFUSED, f"the engine refuses the request (HTTP {status}): {said}")
    if status == HTTPStatus.NOT_FOUND:
        return TransientError(
            Reason.VLM_UNAVAILABLE, f"the engine knows no such model or path; `videosieve vlm check` tells more: {said}"
        )
    return TransientError(
        Reason.VLM_UNAVAILABLE, f"the engine answers HTTP {status}: {said}", retry_after_s=retry_after_s
    )


def fault_in_stream(code: int | str | None, said: str) -> VideosieveError:
    """The error for one that the engine reports after it began to answer; `said` is its own words, secrets masked."""
    if code in _BLOCKED_CODES:
        return AnswerError(Reason.VLM_BLOCKED, f"the engine blocked the request: {said}")
    if code in _REFUSED:
        return AnswerError(Reason.VLM_REQUEST_REFUSED, f"the engine refuses the request (code {code}): {said}")
    if code in _OVERLOADED:
        return TransientError(Reason.VLM_BUSY, f"the engine asks for fewer requests: {said}")
    return BrokenOffError(Reason.VLM_UNAVAILABLE, f"an error in the engine's stream: {said}")


def retry_after_s_of(header: str | None) -> float | None:
    """`Retry-After` in seconds, given as seconds or as a date; None where it is neither. Bounded."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            at = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return None if math.isnan(seconds) else min(MAX_RETRY_AFTER_S, max(0.0, seconds))


def _said(body: str) -> tuple[str, str | None]:
    """The server's own words, and its code where it gives one."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return shortened(body) or "it says nothing", None
    error = found.get("error", found) if isinstance(found, dict) else found
    code = error.get("code") if isinstance(error, dict) else None
    return shortened(error) or "it says nothing", code if isinstance(code, str) else None
