"""The schema of an answer, made from the questions, and the check of what came back against it. Pure.

The engine is asked to keep to the schema, and is not believed to have: everything is checked here again, strictly.
There is no field that free text could fill but `seen`, which decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline.chat import AnswerError, ChatReply
from pipeline.errors import Reason

MAX_SEEN_CHARS = 160
MAX_SCORE = 100


class Said(StrEnum):
    """What the model may say to a question."""

    YES = "yes"
    NO = "no"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Statement:
    """What the model said to one question: its own score in 0..100 for "yes", and the images that show it."""

    said: Said
    score: int
    images: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Statements:
    """A checked answer: one statement a question, in order. `seen` is the model's free text: untrusted."""

    seen: str
    of: dict[str, Statement]


def schema_of(questions: Sequence[str], images: int) -> dict[str, Any]:
    """The JSON schema of an answer to `questions` about `images` pictures: every part of it is bounded."""
    statement = {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "enum": [said.value for said in Said]},
            "score": {"type": "integer", "minimum": 0, "maximum": MAX_SCORE},
            "images": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0, "maximum": images - 1},
                "minItems": 0,
                "maxItems": images,
            },
        },
        "required": ["answer", "score", "images"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "seen": {"type": "string", "maxLength": MAX_SEEN_CHARS},
            "answers": {
                "type": "object",
                "properties": dict.fromkeys(questions, statement),
                "required": list(questions),
                "additionalProperties": False,
            },
        },
        "required": ["seen", "answers"],
        "additionalProperties": False,
    }


def checked(reply: ChatReply, questions: Sequence[str], images: int) -> Statements:
    """The statements in `reply`. Raises AnswerError that says what is wrong, and whether asking again may help."""
    if reply.refusal is not None or reply.finish_reason == "content_filter":
        raise AnswerError(Reason.VLM_BLOCKED, "the model refused to answer")
    if reply.finish_reason == "length":
        raise _invalid("the answer was cut at max_tokens", reply, can_repair=False)
    if not reply.text.strip():
        raise _invalid("the answer is empty", reply)
    try:
        found = json.loads(reply.text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
        return _statements(found, questions, images)
    except RecursionError:
        raise _invalid("the answer is nested too deeply", reply) from None
    except json.JSONDecodeError as error:
        raise _invalid(f"the answer is not JSON: {error.msg} at character {error.pos}", reply) from None
    except ValueError as error:
        raise _invalid(str(error), reply) from None


def _invalid(problem: str, reply: ChatReply, *, can_repair: bool = True) -> AnswerError:
    return AnswerError(Reason.VLM_INVALID_OUTPUT, problem, can_repair=can_repair, answer=reply.text)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _statements(found: Any, questions: Sequence[str], images: int) -> Statements:
    top = _object(found, {"seen", "answers"}, "the answer")
    seen = top["seen"]
    if not isinstance(seen, str) or len(seen) > MAX_SEEN_CHARS:
        raise ValueError(f"`seen` must be a text of at most {MAX_SEEN_CHARS} characters")
    answers = _object(top["answers"], set(questions), "`answers`")
    printable = "".join(char if char.isprintable() else " " for char in seen)
    return Statements(printable, {name: _statement(answers[name], name, images) for name in questions})


def _statement(found: Any, question: str, images: int) -> Statement:
    fields = _object(found, {"answer", "score", "images"}, f"`{question}`")
    answer, score, shown = fields["answer"], fields["score"], fields["images"]
    if not isinstance(answer, str) or answer not in {said.value for said in Said}:
        raise ValueError(f"`{question}.answer` must be one of {', '.join(Said)}")
    if type(score) is not int or not 0 <= score <= MAX_SCORE:
        raise ValueError(f"`{question}.score` must be a whole number from 0 to {MAX_SCORE}")
    if not isinstance(shown, list) or not all(type(index) is int and 0 <= index < images for index in shown):
        raise ValueError(f"`{question}.images` must list images from 0 to {images - 1}")
    if len(shown) > images:
        raise ValueError(f"`{question}.images` lists more images than were shown")
    said = Said(answer)
    if said is Said.YES and not shown:
        raise ValueError(f"`{question}` is answered yes, but `images` names none that shows it")
    return Statement(said, score, tuple(sorted(set(shown))))


def _object(found: Any, keys: set[str], what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{what} must be an object")  # noqa: TRY004 - foreign data, not a wrong call
    if found.keys() != keys:
        missing, extra = sorted(keys - found.keys()), sorted(repr(key)[:40] for key in found.keys() - keys)
        parts = [
            f"lacks {', '.join(missing)}" if missing else "",
            f"has unknown {', '.join(extra[:5])}" if extra else "",
        ]
        raise ValueError(f"{what} " + " and ".join(filter(None, parts)))
    return found
