"""Values of one conversation with a vision-language model (VLM): what is asked, and what came back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.errors import Reason, TransientError, VideosieveError


class AnswerError(VideosieveError):
    """This request or its answer is at fault, not the engine: a person answers the questions instead.

    `can_repair` says whether asking once more, with what was wrong, may help; `answer` is what came.
    """

    def __init__(self, reason: Reason, detail: str, *, can_repair: bool = False, answer: str = "") -> None:
        super().__init__(reason, detail)
        self.can_repair = can_repair
        self.answer = answer


class BrokenOffError(TransientError):
    """The engine took the request, and its answer did not come whole: nobody knows what it bills for that."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the model draws its tokens; `top_k` None leaves that limit out of the request."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    max_tokens: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request. `system` is the part that never changes, so that an engine can keep it in its prefix cache;
    `images` are JPEG files and come last. `repair` is a bad answer and what was wrong with it.
    """

    model: str
    system: str
    text: str
    images: tuple[bytes, ...]
    schema: Mapping[str, Any] | None
    sampling: Sampling
    logprobs: bool = False
    repair: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them. `cached_tokens` are those of `prompt_tokens` that its prefix cache had."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer with its probability in 0..1 and those of the runners-up, itself among them."""

    text: str
    probability: float
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """How the answer came: seconds from sending to the first token, and to the last one."""

    ttft_s: float
    total_s: float

    def tpot_s(self, completion_tokens: int) -> float | None:
        """Seconds for each token after the first; None where there were fewer than two."""
        return (self.total_s - self.ttft_s) / (completion_tokens - 1) if completion_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What came back, unchecked: `text` may be anything. `usage` is None where the engine gave none that adds up."""

    text: str
    finish_reason: str | None
    refusal: str | None
    usage: Usage | None
    timing: Timing
    tokens: tuple[Token, ...] = field(default=(), repr=False)


class Engine(Protocol):
    """An OpenAI-compatible server; `pipeline.models.chat_client.ChatClient` speaks to a real one."""

    def complete(self, request: ChatRequest) -> ChatReply:
        """Ask once. Raises TransientError(VLM_UNAVAILABLE | VLM_BUSY) for an engine that is down, slow, overloaded or
        set up wrongly (BrokenOffError where it may bill the request all the same), AnswerError where this request or
        its answer is at fault.
        """
        ...
