"""Talks to any OpenAI-compatible server over HTTP: streamed, with a deadline for each part, bounded, measured.

One event loop in a thread of its own serves all callers: only there can each part of a stream have its own deadline.
Callers block in `complete`; what costs processor time (JSON, base64) is done in their threads.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx

from pipeline.chat import AnswerError, BrokenOffError, ChatReply, ChatRequest, Timing
from pipeline.errors import Reason, TransientError, UserError, VideosieveError
from pipeline.models.chat_faults import fault_in_stream, fault_of
from pipeline.models.chat_wire import (
    MAX_LINE_BYTES,
    MAX_STREAM_BYTES,
    Gathered,
    StreamedFaultError,
    payload,
    shortened,
)

_SHORT_S = 30.0
_ERROR_BYTES = 4096
_MAX_PAGE_BYTES = 4 * 2**20
"""Of a list of models, or of metrics."""
_FAREWELL_S = 0.25
"""How long the end of a complete answer is waited for, so that its connection can be used again."""

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.ProxyError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each part may take, in seconds: connecting, the first token, the next token, all of it."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    next_token_s: float = 15.0
    total_s: float = 180.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the server says of itself: the models it serves and, where it tells, their context length in tokens."""

    models: tuple[str, ...]
    max_context_tokens: int | None


class ChatClient:
    """Connections to one engine; thread-safe. `url` is its OpenAI base, usually ending in `/v1`."""

    def __init__(self, url: str, *, api_key: str | None, deadlines: Deadlines, max_connections: int) -> None:
        self._url = checked_url(url)
        self._deadlines = deadlines
        self._secret = api_key
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            headers=headers | {"Content-Type": "application/json", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(None, connect=deadlines.connect_s),  # the rest has deadlines of its own
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wait(self._http.aclose())
        self._wait(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `pipeline.chat.Engine`."""
        return self._wait(self._complete(payload(request)))

    def info(self) -> EngineInfo:
        """The models that are served. Raises as `complete` does."""
        found = self._wait(self._get(f"{self._url}/models"))
        try:
            listed = [entry for entry in json.loads(found)["data"] if isinstance(entry.get("id"), str)]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise TransientError(
                Reason.VLM_UNAVAILABLE, f"{self._url}/models is no model list: is the URL an OpenAI-compatible base?"
            ) from None
        lengths = [entry.get("max_model_len") for entry in listed]
        known = [length for length in lengths if type(length) is int]
        return EngineInfo(tuple(shortened(entry["id"], 200) for entry in listed[:50]), min(known, default=None))

    def metrics_text(self) -> str | None:
        """What the engine's own /metrics says, None where it has none."""
        root = self._url.removesuffix("/v1")
        try:
            return self._wait(self._get(f"{root}/metrics")).decode(errors="replace")
        except (TransientError, AnswerError):
            return None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _get(self, url: str) -> bytes:
        try:
            async with (
                asyncio.timeout(min(_SHORT_S, self._deadlines.total_s)),
                self._http.stream("GET", url) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise await self._fault(response)
                return await _first_bytes(response, _MAX_PAGE_BYTES)
        except TimeoutError:
            raise _unavailable(f"{url} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._foreign(error) from None

    async def _complete(self, body: bytes) -> ChatReply:
        loop, deadlines, gathered = self._loop, self._deadlines, Gathered()
        started_s = loop.time()
        end_s = started_s + deadlines.total_s
        first_s: float | None = None
        last_s = started_s
        try:
            async with (
                asyncio.timeout_at(min(end_s, started_s + deadlines.first_token_s)) as patience,
                self._http.stream("POST", f"{self._url}/chat/completions", content=body) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise await self._fault(response)
                async for line in _lines(response):
                    if gathered.take(line):
                        last_s = loop.time()
                        first_s = first_s or last_s
                        patience.reschedule(min(end_s, last_s + deadlines.next_token_s))
                    elif gathered.is_done:
                        patience.reschedule(loop.time() + _FAREWELL_S)
        except TimeoutError:
            if not gathered.is_complete:
                raise _broken_off(self._too_slow(first_s, loop.time() >= end_s)) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if not gathered.is_complete:
                raise self._foreign(error) from None
        except ValueError as error:
            raise _broken_off(f"the engine's stream cannot be read: {self._masked(str(error))[:300]}") from None
        except StreamedFaultError as error:
            raise fault_in_stream(error.code, self._masked(str(error))) from None
        if not gathered.is_complete:
            raise _broken_off("the engine's answer broke off; does it stream (`stream: true`)?")
        return ChatReply(
            text=gathered.text,
            finish_reason=gathered.finish_reason,
            refusal=gathered.refusal,
            usage=gathered.usage,
            timing=Timing(ttft_s=(first_s or last_s) - started_s, total_s=last_s - started_s),
            tokens=tuple(gathered.tokens),
        )

    def _too_slow(self, first_s: float | None, is_over: bool) -> str:
        deadlines = self._deadlines
        if is_over:
            return f"the answer was not complete within {deadlines.total_s:g} s"
        if first_s is None:
            return f"no first token within {deadlines.first_token_s:g} s"
        return f"no further token within {deadlines.next_token_s:g} s"

    async def _fault(self, response: httpx.Response) -> VideosieveError:
        body = await _first_bytes(response, _ERROR_BYTES) if _is_plain(response) else b""
        text = self._masked(body.decode(errors="replace"))
        return fault_of(response.status_code, response.headers.get("retry-after"), text)

    def _foreign(self, error: Exception) -> TransientError:
        detail = f"{self._url}: {type(error).__name__}: {self._masked(shortened(error))}"
        return _unavailable(detail) if isinstance(error, _NEVER_SENT) else _broken_off(detail)

    def _masked(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


def _unavailable(detail: str) -> TransientError:
    return TransientError(Reason.VLM_UNAVAILABLE, detail)


def _broken_off(detail: str) -> BrokenOffError:
    return BrokenOffError(Reason.VLM_UNAVAILABLE, detail)


async def _first_bytes(response: httpx.Response, most: int) -> bytes:
    found = bytearray()
    async for chunk in _chunks(response):
        found += chunk
        if len(found) >= most:
            break
    return bytes(found[:most])


def _is_plain(response: httpx.Response) -> bool:
    encoding: str = response.headers.get("content-encoding", "identity")
    return encoding.strip().lower() == "identity"


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it was sent. Raises TransientError for a compressed one: few bytes of it may stand for gigabytes."""
    if not _is_plain(response):
        raise _unavailable("the engine's answer is compressed although `Accept-Encoding: identity` was asked for")
    async for chunk in response.aiter_raw():
        yield chunk


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """The lines of an event stream, split at line feeds alone: text may hold other separators.

    Raises AnswerError(VLM_INVALID_OUTPUT) once the stream, or one line of it, is beyond its bound.
    """
    rest = b""
    total_bytes = 0
    async for chunk in _chunks(response):
        total_bytes += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
        if total_bytes > MAX_STREAM_BYTES or len(rest) > MAX_LINE_BYTES:
            raise AnswerError(Reason.VLM_INVALID_OUTPUT, f"the answer does not end: {total_bytes} bytes so far")
    yield rest.decode(errors="replace")


def checked_url(url: str) -> str:
    """`url` without a trailing slash. Raises UserError(BAD_SETTING) for what is no base address of an engine."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UserError(Reason.BAD_SETTING, f"the engine's URL cannot be read: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
        raise UserError(
            Reason.BAD_SETTING,
            "the engine's URL must be like http://HOST:8000/v1, the base of its OpenAI-compatible API",
        )
    if parsed.userinfo:
        raise UserError(Reason.BAD_SETTING, "the engine's URL holds a password: set VIDEOSIEVE_VLM__API_KEY instead")
    return url.rstrip("/")
