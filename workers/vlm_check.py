"""Tries an engine: what it can do, how fast it is, what to set. Every finding comes from a request that was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from pipeline.cascade.vlm_part import ImagesPart, SamplingPart
from pipeline.chat import AnswerError, ChatReply, ChatRequest, Sampling
from pipeline.errors import TransientError, VideosieveError
from pipeline.jpeg import encode_jpeg
from pipeline.models.chat_client import ChatClient, EngineInfo
from pipeline.vlm.canary import canary_request, canary_score, facts
from pipeline.vlm.scores import spoken

_HELLO = ChatRequest(
    model="",
    system="You are being tried out. " + "This sentence only makes the constant part long. " * 60,
    text="Name a colour.",
    images=(),
    schema=None,
    sampling=Sampling(max_tokens=128),
)
_ODD_WORD = "quixotic-zebra-7"
_ODD_SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "enum": [_ODD_WORD]},
        "number": {"type": "integer", "minimum": 7, "maximum": 9},
    },
    "required": ["word", "number"],
    "additionalProperties": False,
}
_HITS = re.compile(
    r"^(vllm:prefix_cache_hits(?:_total)?|sglang:cached_tokens_total)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE
)


class Grade(StrEnum):
    OK = "ok"
    POOR = "poor"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one trial showed. `advice` says what to set or to do, empty where nothing."""

    name: str
    grade: Grade
    found: str
    advice: str = ""


def check_engine(
    client: ChatClient, *, model: str | None, images: ImagesPart, sampling: SamplingPart | None = None
) -> Iterator[Finding]:
    """Trials in order; ends early where the rest cannot work. The first that fails says why nothing more was tried."""
    try:
        info = client.info()
    except VideosieveError as error:
        yield Finding("reachable", Grade.FAILED, error.detail, "start the engine, or correct the URL or the key")
        return
    yield Finding("reachable", Grade.OK, f"serves {', '.join(info.models) or 'nothing'}{_context(info)}")
    chosen = model or (info.models[0] if info.models else "")
    if chosen not in info.models:
        yield Finding(
            "model", Grade.FAILED, f"{chosen or 'none'} is not served", "set decision.vlm.model to one that is"
        )
        return
    trials = Trials(client, chosen, images, sampling or SamplingPart())
    for trial in (
        trials.stream, trials.schema, trials.pictures, trials.picture_tokens, trials.prefix_cache, trials.logprobs,
        trials.known_answers,
    ):  # fmt: skip
        try:
            yield trial()
        except TransientError as error:
            yield Finding(trial.__name__, Grade.FAILED, error.detail, "look at the engine's log")
            return
        except AnswerError as error:
            yield Finding(trial.__name__, Grade.FAILED, error.detail, _ADVICE.get(trial.__name__, ""))


def is_usable(findings: Sequence[Finding]) -> bool:
    """Whether videosieve can work with the engine: poor findings cost money or certainty, failed ones the use."""
    return not any(finding.grade is Grade.FAILED for finding in findings)


_ADVICE = {
    "stream": "the engine must serve POST /chat/completions with `stream: true`",
    "schema": "the engine must support `response_format: json_schema`: vLLM and SGLang do by default",
    "pictures": "serve a vision-language model, and allow pictures (vLLM: --limit-mm-per-prompt)",
    "logprobs": "set VIDEOSIEVE_VLM__LOGPROBS=false: the model's own score counts then",
    "known_answers": "these pictures are as many and as large as the policy's: raise the engine's limits (context, "
    "size of a request), or lower decision.vlm.images",
}


@dataclass(frozen=True, slots=True)
class Trials:
    """One method a trial."""

    client: ChatClient
    model: str
    images: ImagesPart
    sampling: SamplingPart

    def _ask(self, **fields: object) -> ChatReply:
        return self.client.complete(replace(_HELLO, model=self.model, **fields))  # type: ignore[arg-type]

    def stream(self) -> Finding:
        reply = self._ask()
        if reply.usage is None:
            return Finding(
                "stream", Grade.POOR, "streams, but tells no usage that adds up",
                "the worst case will be charged: enable stream_options.include_usage on the engine",
            )  # fmt: skip
        tpot_s = reply.timing.tpot_s(reply.usage.completion_tokens)
        rate = f", {1 / tpot_s:.0f} tokens/s ({tpot_s * 1000:.1f} ms each)" if tpot_s else ""
        return Finding("stream", Grade.OK, f"first token after {reply.timing.ttft_s:.2f} s{rate}")

    def schema(self) -> Finding:
        reply = self._ask(schema=_ODD_SCHEMA)
        try:
            found = json.loads(reply.text)
        except ValueError:
            found = None
        if isinstance(found, dict) and found.get("word") == _ODD_WORD and isinstance(found.get("number"), int):
            return Finding("schema", Grade.OK, "answers keep to a JSON schema that no model would follow by chance")
        if reply.finish_reason == "length":
            return Finding(
                "schema", Grade.POOR, "the answer under a schema ran into max_tokens",
                "vLLM pads with spaces unless told: --structured-outputs-config "
                "'{\"backend\": \"xgrammar\", \"disable_any_whitespace\": true}'",
            )  # fmt: skip
        return Finding("schema", Grade.FAILED, "the schema is ignored", _ADVICE["schema"])

    def pictures(self) -> Finding:
        wanted, taken, why = self.images.max_images, 0, ""
        for count in sorted({1, max(1, wanted // 2), wanted}):
            try:
                self._ask(images=_pictures(count, 64))
                taken = count
            except AnswerError as error:
                why = error.detail
                break
        if taken == wanted:
            return Finding("pictures", Grade.OK, f"takes the policy's {wanted} pictures in a request")
        if not taken:
            return Finding("pictures", Grade.FAILED, why, _ADVICE["pictures"])
        return Finding(
            "pictures", Grade.FAILED, f"takes {taken} pictures and not {wanted}: {why}",
            f"set decision.vlm.images.max_images to {taken}, or raise the engine's limit "
            f"(vLLM: --limit-mm-per-prompt '{{\"image\": {wanted}}}')",
        )  # fmt: skip

    def picture_tokens(self) -> Finding:
        side_px = int(min(self.images.max_pixels, 602_112) ** 0.5)
        one, two = (self._ask(images=_pictures(count, side_px)).usage for count in (1, 2))
        if one is None or two is None or two.prompt_tokens <= one.prompt_tokens:
            return Finding("picture_tokens", Grade.POOR, "what a picture takes cannot be told from the usage")
        tokens = two.prompt_tokens - one.prompt_tokens
        measured, expected = side_px * side_px / tokens, self.images.pixels_per_token
        found = f"{tokens} tokens for {side_px} x {side_px} pixels: {measured:.0f} pixels a token"
        if 0.8 < measured / expected < 1.25:
            return Finding("picture_tokens", Grade.OK, found)
        return Finding(
            "picture_tokens", Grade.POOR, f"{found}, and not {expected}",
            f"set decision.vlm.images.pixels_per_token to {measured:.0f}",
        )  # fmt: skip

    def prefix_cache(self) -> Finding:
        before = _hits(self.client.metrics_text())
        replies = [self._ask(text=f"Name a colour, number {number}.") for number in range(3)]
        after = _hits(self.client.metrics_text())
        cached = max((reply.usage.cached_tokens for reply in replies if reply.usage), default=0)
        if cached:
            return Finding("prefix_cache", Grade.OK, f"{cached} tokens of the constant part come from the cache")
        if before is not None and after is not None and after > before:
            return Finding(
                "prefix_cache", Grade.POOR, "works by the engine's metrics, but the usage does not tell cached tokens",
                "they are charged in full: vLLM: --enable-prompt-tokens-details",
            )  # fmt: skip
        return Finding(
            "prefix_cache", Grade.POOR, "no sign of a prefix cache",
            "vLLM: --enable-prefix-caching --enable-prompt-tokens-details; SGLang: leave the radix cache on",
        )  # fmt: skip

    def logprobs(self) -> Finding:
        reply = self._ask(logprobs=True, schema=_ODD_SCHEMA)
        if spoken(reply.tokens, reply.text):
            return Finding("logprobs", Grade.OK, "probabilities of all tokens: scores are measured, not claimed")
        return Finding("logprobs", Grade.POOR, "no token probabilities that add up to the text", _ADVICE["logprobs"])

    def known_answers(self) -> Finding:
        reply = self.client.complete(canary_request(self.model, self.images, self.sampling, logprobs=False))
        score, asked = canary_score(reply, self.images), len(facts(self.images))
        found = f"{score * asked:.0f} of {asked} questions about coloured shapes answered right"
        if score > 0.75:
            return Finding("known_answers", Grade.OK, found)
        return Finding("known_answers", Grade.POOR, found, "half is what guessing gives: is this the right model?")


def _context(info: EngineInfo) -> str:
    return f"; {info.max_context_tokens} tokens of context" if info.max_context_tokens else ""


def _pictures(count: int, side_px: int) -> tuple[bytes, ...]:
    """Different ones, so that no cache of pictures helps."""
    generator = np.random.default_rng(side_px * 100 + count)
    return tuple(encode_jpeg(generator.integers(0, 255, (side_px, side_px, 3), np.uint8)) for _ in range(count))


def _hits(metrics: str | None) -> float | None:
    """The engine's own count of prefix cache hits, where its /metrics tell it."""
    try:
        found = [float(value) for _, value in _HITS.findall(metrics or "")]
    except ValueError:
        return None
    return sum(found) if found else None
