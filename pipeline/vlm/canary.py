"""Known-answer pictures: does the engine still see? Made by code, asked like any video, scored. Pure.

Half of the questions are true. An engine that answers all alike, or at random, scores 0.5; one that gives no usable
answer has no score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from pipeline.cascade.vlm_part import VlmAnswer, VlmPart
from pipeline.chat import ChatReply, ChatRequest
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage
from pipeline.vlm.answers import Said, checked, schema_of
from pipeline.vlm.case import Case, Frame, OpenQuestion
from pipeline.vlm.judge import sampling_of
from pipeline.vlm.prompt import system_text, video_text

SIZE_PX = 224
_COLOURS = {"red": (40, 40, 220), "green": (60, 170, 40), "blue": (220, 90, 30), "yellow": (40, 220, 240)}
_PROMPT = "You check pictures of coloured shapes."
_Draw = Callable[[BgrImage, tuple[int, int, int]], object]


@dataclass(frozen=True, slots=True)
class Fact:
    """One question with its answer; `image` is the picture that shows it."""

    question: str
    is_true: bool
    image: int | None = None


def _circle(image: BgrImage, colour: tuple[int, int, int]) -> object:
    return cv2.circle(image, (SIZE_PX // 2, SIZE_PX // 2), SIZE_PX // 3, colour, -1)


def _square(image: BgrImage, colour: tuple[int, int, int]) -> object:
    return cv2.rectangle(image, (SIZE_PX // 5, SIZE_PX // 5), (SIZE_PX * 4 // 5, SIZE_PX * 4 // 5), colour, -1)


def _triangle(image: BgrImage, colour: tuple[int, int, int]) -> object:
    corners = np.array([[SIZE_PX // 2, SIZE_PX // 6], [SIZE_PX // 6, SIZE_PX * 5 // 6], [SIZE_PX * 5 // 6] * 2])
    return cv2.fillPoly(image, [corners], colour)


_SHAPES: dict[str, _Draw] = {"circle": _circle, "square": _square, "triangle": _triangle}
_SHOWN = (("red", "circle"), ("blue", "square"), ("green", "triangle"), ("yellow", "circle"))
_NOT_SHOWN = (("red", "square"), ("blue", "triangle"), ("green", "circle"), ("yellow", "square"))

FACTS = (
    *(Fact(f"{colour}_{shape}", True, image) for image, (colour, shape) in enumerate(_SHOWN)),
    *(Fact(f"{colour}_{shape}", False) for colour, shape in _NOT_SHOWN),
)


def drawing(colour: str, shape: str) -> BgrImage:
    """A shape on white, 224 x 224."""
    image = np.full((SIZE_PX, SIZE_PX, 3), 255, np.uint8)
    _SHAPES[shape](image, _COLOURS[colour])
    return image


def canary_request(model: str, *, logprobs: bool) -> ChatRequest:
    """All facts asked about all pictures, in one request."""
    answers = {
        fact.question: VlmAnswer(
            wording=f"Is there a {fact.question.replace('_', ' ')}?", positive_at=0.6, negative_at=0.4
        )
        for fact in FACTS
    }
    stage = VlmPart(name="canary", model=model, prompt=_PROMPT, answers=answers)
    frames = {i: Frame(i, float(i), SIZE_PX, SIZE_PX, "", "", 0.0) for i in range(len(_SHOWN))}
    asked = tuple(OpenQuestion(fact.question, tuple(frames), 0.5, None) for fact in FACTS)
    case = Case(asked, frames, 1.0)
    return ChatRequest(
        model=model,
        system=system_text(stage),
        text=video_text(case, tuple(frames)),
        images=tuple(encode_jpeg(drawing(*shown)) for shown in _SHOWN),
        schema=schema_of(case.questions, len(frames)),
        sampling=sampling_of(stage.sampling),
        logprobs=logprobs,
    )


def canary_score(reply: ChatReply) -> float:
    """The share of the facts that were told right, in 0..1. Raises AnswerError for an answer that is no use."""
    statements = checked(reply, tuple(fact.question for fact in FACTS), len(_SHOWN)).of
    right = sum(_is_right(statements[fact.question].said, fact) for fact in FACTS)
    return right / len(FACTS)


def _is_right(said: Said, fact: Fact) -> bool:
    return said is (Said.YES if fact.is_true else Said.NO)
