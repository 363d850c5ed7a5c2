"""The OpenAI chat format, both ways: a request as JSON, a stream's lines as events. Pure: no network, no clock.

What comes back is hostile until shown otherwise: every field is checked for its type and bounded in size.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.chat import AnswerError, ChatRequest, Token, Usage
from pipeline.errors import Reason

MAX_ANSWER_CHARS = 32_768
"""Bounded schemas need a few thousand at most."""
MAX_STREAM_BYTES = 8 * 2**20
"""A token with five runners-up takes about 1 KiB of the stream."""
MAX_LINE_BYTES = 2**20
TOP_LOGPROBS = 5
_MAX_TOKENS = 10_000_000
"""Beyond this a token count is not a count."""
_LEAST_LOGPROB = -1e4
"""Its exponential is 0; JSON can spell numbers that are no float."""


class StreamedFaultError(Exception):
    """What an engine says went wrong, after it had begun to answer, and its code for that where it gives one."""

    def __init__(self, error: Any) -> None:
        super().__init__(shortened(error))
        code = error.get("code") if isinstance(error, Mapping) else None
        self.code = code if isinstance(code, int | str) else None


def payload(request: ChatRequest) -> bytes:
    """The request's body. The constant part comes first and the images last: prefix caches match from the start."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": request.text}]
    parts += [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in request.images]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": request.system},
        {"role": "user", "content": parts},
    ]
    if request.repair is not None:
        answer, problem = request.repair
        messages += [
            {"role": "assistant", "content": answer},
            {
                "role": "user",
                "content": f"That answer cannot be used: {problem}. Answer again, with the JSON object only.",
            },
        ]
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
    }
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k
    if request.logprobs:
        body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    if request.schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answers", "strict": True, "schema": request.schema},
        }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def _data_url(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")


@dataclass(slots=True)
class Gathered:
    """An answer as it comes in, line by line."""

    pieces: list[str] = field(default_factory=list)
    refusal: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    tokens: list[Token] = field(default_factory=list)
    is_done: bool = False
    _chars: int = 0

    @property
    def text(self) -> str:
        """All pieces together; halves of surrogate pairs, which JSON can spell and UTF-8 cannot, joined or replaced."""
        return "".join(self.pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @property
    def is_complete(self) -> bool:
        """Whether the answer is all there; its usage may still be to come."""
        return self.is_done or self.finish_reason is not None

    def take(self, line: str) -> bool:
        """Add one line of the event stream; True where it brought a token.

        Raises AnswerError(VLM_INVALID_OUTPUT) for an answer beyond its bound, ValueError for a line that is no event,
        StreamedFaultError for an error that the engine reports in the stream.
        """
        line = line.removeprefix("\ufeff")  # a byte order mark is no part of the first line
        if not line.startswith("data:"):
            return False  # a comment to keep the connection alive, an event's name, an empty line
        data = line[5:].strip()
        if data == "[DONE]":
            self.is_done = True
            return False
        try:
            event = json.loads(data)
        except RecursionError:
            raise ValueError("an event that is nested too deeply") from None
        if not isinstance(event, dict):
            raise ValueError("an event that is no object")  # noqa: TRY004 - foreign data, not a wrong call
        if "error" in event:
            raise StreamedFaultError(event["error"])
        if event.get("usage") is not None:
            self.usage = usage_of(event["usage"])
        choices = event.get("choices")
        brought = [self._take_choice(choice) for choice in choices] if isinstance(choices, list) else []
        return any(brought)

    def _take_choice(self, choice: Any) -> bool:
        if not isinstance(choice, dict):
            raise ValueError("a choice that is no object")  # noqa: TRY004 - likewise
        if choice.get("index", 0) != 0:
            return False  # one answer was asked for
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"][:40]
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return False
        if isinstance(delta.get("refusal"), str):
            self.refusal = ((self.refusal or "") + delta["refusal"])[:500]
        content = delta.get("content")
        if not isinstance(content, str) or not content:
            return self.refusal is not None
        self._chars += len(content)
        if self._chars > MAX_ANSWER_CHARS:
            raise AnswerError(Reason.VLM_INVALID_OUTPUT, f"the answer is longer than {MAX_ANSWER_CHARS} characters")
        self.pieces.append(content)
        self.tokens += _tokens(choice.get("logprobs"))
        return True


def usage_of(found: Any) -> Usage | None:
    """The engine's counts; None where they are missing or cannot be true: then the worst case is charged."""
    if not isinstance(found, Mapping):
        return None
    details = found.get("prompt_tokens_details")
    prompt, completion = _count(found.get("prompt_tokens")), _count(found.get("completion_tokens"))
    cached = _count(details.get("cached_tokens") or 0) if isinstance(details, Mapping) else 0
    if not prompt or completion is None or cached is None or cached > prompt:
        return None
    return Usage(prompt, cached, completion)


def _count(found: Any) -> int | None:
    return found if type(found) is int and 0 <= found <= _MAX_TOKENS else None


def _tokens(found: Any) -> Iterable[Token]:
    """Tokens with their probabilities, for as long as the engine's list makes sense."""
    content = found.get("content") if isinstance(found, Mapping) else None
    for entry in content if isinstance(content, list) else ():
        text, probability = _scored(entry)
        if text is None:
            return
        runners_up = entry.get("top_logprobs")
        scored = [_scored(other) for other in runners_up[:20]] if isinstance(runners_up, list) else []
        yield Token(text, probability, tuple((other, p) for other, p in scored if other is not None))


def _scored(entry: Any) -> tuple[str | None, float]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("token"), str):
        return None, 0.0
    logprob = entry.get("logprob")
    if not isinstance(logprob, int | float) or isinstance(logprob, bool) or logprob != logprob:
        return None, 0.0
    return entry["token"], math.exp(max(_LEAST_LOGPROB, min(0.0, logprob)))


def shortened(found: Any, limit: int = 300) -> str:
    """Foreign text for a message: one line, printable, bounded."""
    text = found.get("message", found) if isinstance(found, Mapping) else found
    line = " ".join(str(text).split())
    return "".join(char if char.isprintable() else "?" for char in line)[:limit]
