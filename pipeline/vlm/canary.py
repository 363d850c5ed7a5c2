"""Known-answer pictures: does the engine still see? Made by code, asked like any video, scored. Pure.

They are as many, as large and as heavy as the pictures of a policy's largest request, so that an engine that refuses
those refuses these. Half of the questions are true: an engine that answers all alike, or at random, scores 0.5; one
that gives no usable answer has no score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import cv2
import numpy as np

from pipeline.cascade.vlm_part import ImagesPart, SamplingPart, VlmAnswer, VlmPart
from pipeline.chat import ChatReply, ChatRequest
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage
from pipeline.vlm.answers import Said, checked, schema_of
from pipeline.vlm.case import Case, Frame, OpenQuestion
from pipeline.vlm.judge import sampling_of
from pipeline.vlm.prompt import system_text, video_text

LEAST_TOKENS = 512
"""What the answers need; `max_tokens` of a policy may be meant for fewer questions."""
_COLOURS = {"red": (40, 40, 220), "green": (60, 170, 40), "blue": (220, 90, 30), "yellow": (40, 220, 240)}
_PROMPT = "You check pictures of coloured shapes."
_GRAIN = 12
"""Grey levels of noise, up and down: without it a picture of a shape is a tenth of the bytes of a photograph."""
_Draw = Callable[[BgrImage, tuple[int, int, int]], object]


@dataclass(frozen=True, slots=True)
class Fact:
    """One question with its answer; `image` is the first picture that shows it."""

    question: str
    is_true: bool
    image: int | None = None


def _circle(image: BgrImage, colour: tuple[int, int, int]) -> object:
    side_px = image.shape[0]
    return cv2.circle(image, (side_px // 2, side_px // 2), side_px // 3, colour, -1)


def _square(image: BgrImage, colour: tuple[int, int, int]) -> object:
    side_px = image.shape[0]
    return cv2.rectangle(image, (side_px // 5, side_px // 5), (side_px * 4 // 5, side_px * 4 // 5), colour, -1)


def _triangle(image: BgrImage, colour: tuple[int, int, int]) -> object:
    side_px = image.shape[0]
    corners = np.array([[side_px // 2, side_px // 6], [side_px // 6, side_px * 5 // 6], [side_px * 5 // 6] * 2])
    return cv2.fillPoly(image, [corners], colour)


_SHAPES: dict[str, _Draw] = {"circle": _circle, "square": _square, "triangle": _triangle}
_SHOWN = (("red", "circle"), ("blue", "square"), ("green", "triangle"), ("yellow", "circle"))
_NOT_SHOWN = (("red", "square"), ("blue", "triangle"), ("green", "circle"), ("yellow", "square"))


def facts(images: ImagesPart) -> tuple[Fact, ...]:
    """What is asked: as many true facts as false ones, two for each different picture that there is room for."""
    count = min(len(_SHOWN), images.max_images)
    return (
        *(Fact(f"{colour}_{shape}", True, image) for image, (colour, shape) in enumerate(_SHOWN[:count])),
        *(Fact(f"{colour}_{shape}", False) for colour, shape in _NOT_SHOWN[:count]),
    )


def drawing(colour: str, shape: str, side_px: int) -> BgrImage:
    """A shape on white, with grain; (side_px, side_px, 3), uint8, BGR."""
    image = np.full((side_px, side_px, 3), 255, np.uint8)
    _SHAPES[shape](image, _COLOURS[colour])
    grain = np.random.default_rng(side_px).integers(-_GRAIN, _GRAIN + 1, image.shape, np.int16)
    return np.asarray(np.clip(image + grain, 0, 255), np.uint8)


def canary_request(model: str, images: ImagesPart, sampling: SamplingPart, *, logprobs: bool) -> ChatRequest:
    """All facts asked about all pictures, in one request."""
    asked = facts(images)
    answers = {
        fact.question: VlmAnswer(
            wording=f"Is there a {fact.question.replace('_', ' ')}?", positive_at=0.6, negative_at=0.4
        )
        for fact in asked
    }
    stage = VlmPart(name="canary", model=model, prompt=_PROMPT, answers=answers)
    pictures = _pictures(images.max_images, _side_px(images))
    frames = {i: Frame(i, float(i), 0, 0, "", "", 0.0) for i in range(len(pictures))}
    case = Case(tuple(OpenQuestion(fact.question, tuple(frames), 0.5, None) for fact in asked), frames, 1.0)
    return ChatRequest(
        model=model,
        system=system_text(stage),
        text=video_text(case, tuple(frames)),
        images=pictures,
        schema=schema_of(case.questions, len(frames)),
        sampling=replace(sampling_of(sampling), max_tokens=max(LEAST_TOKENS, sampling.max_tokens)),
        logprobs=logprobs,
    )


def canary_score(reply: ChatReply, images: ImagesPart) -> float:
    """The share of the facts that were told right, in 0..1. Raises AnswerError for an answer that is no use."""
    asked = facts(images)
    statements = checked(reply, tuple(fact.question for fact in asked), images.max_images).of
    return sum(_is_right(statements[fact.question].said, fact) for fact in asked) / len(asked)


def _side_px(images: ImagesPart) -> int:
    """Of a square picture of the most pixels that each of `max_images` may have."""
    most_px = images.max_image_tokens // images.max_images * images.pixels_per_token
    return max(32, math.isqrt(min(images.max_pixels, most_px)))


@lru_cache(maxsize=4)
def _pictures(count: int, side_px: int) -> tuple[bytes, ...]:
    jpegs = [encode_jpeg(drawing(*shown, side_px)) for shown in _SHOWN[:count]]
    return tuple(jpegs[number % len(jpegs)] for number in range(count))


def _is_right(said: Said, fact: Fact) -> bool:
    return said is (Said.YES if fact.is_true else Said.NO)
