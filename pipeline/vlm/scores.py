"""How sure an answer is, from the probabilities of its tokens where the engine gives them. Pure.

The score of a question is the probability of "yes". What went to neither yes nor no is split between the two, so that a
token that a grammar forced upon the model, of tiny probability, scores about 0.5: unknown, and never 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from pipeline.chat import Token
from pipeline.vlm.answers import MAX_SCORE, Said, Statement

_MOST_STATED = 0.99
"""What a model merely says of itself is never certain."""


class ScoreSource(StrEnum):
    """Where a score comes from: token probabilities, or what the model said of itself."""

    LOGPROBS = "logprobs"
    STATED = "stated"


def score_of(question: str, statement: Statement, text: str, tokens: Sequence[Token]) -> tuple[float, ScoreSource]:
    """The probability of "yes" in 0..1, both ends excluded, and where it is from."""
    probability = _from_tokens(question, statement.said, text, tokens)
    if probability is not None:
        return min(_MOST_STATED + 0.009, max(0.001, probability)), ScoreSource.LOGPROBS
    return min(_MOST_STATED, max(1 - _MOST_STATED, statement.score / MAX_SCORE)), ScoreSource.STATED


def spoken(tokens: Sequence[Token], text: str) -> list[Token]:
    """Those of `tokens` that make up `text`; none where they do not.

    What an engine sends beside them is left out: the token that ends an answer, and others that are no text. A token
    may be a part of a character, which engines show each in their own way. The answers are ASCII, as is the JSON around
    them, so nothing else is compared.
    """
    wanted, at, kept = _ascii(text), 0, []
    for token in tokens:
        said = _ascii(token.text)
        if wanted.startswith(said, at):
            kept.append(token)
            at += len(said)
    return kept if at == len(wanted) else []


def _from_tokens(question: str, said: Said, text: str, tokens: Sequence[Token]) -> float | None:
    """None where the tokens do not add up to the text, or the answer cannot be found in them."""
    tokens = spoken(tokens, text)
    joined = "".join(token.text for token in tokens)
    # A quote inside a JSON string is escaped, so this matches the real key only.
    found = re.search(rf'"{re.escape(question)}"\s*:\s*\{{\s*"answer"\s*:\s*"({said.value})"', joined)
    if found is None:
        return None
    value_at = found.start(1)
    token, starts_at = _token_at(tokens, value_at)
    lead = token.text[: value_at - starts_at]  # a token may begin with the quote
    if len(token.text) <= len(lead):
        return None
    mass = {Said.YES: 0.0, Said.NO: 0.0}
    seen: set[str] = set()
    for other, probability in ((token.text, token.probability), *token.alternatives):
        word = other[len(lead) :]
        if other in seen or not word or not other.startswith(lead):
            continue
        seen.add(other)
        for answer in mass:
            if word.startswith(answer.value) or answer.value.startswith(word):
                mass[answer] += probability
    yes, no = min(1.0, mass[Said.YES]), min(1.0, mass[Said.NO])
    return yes + max(0.0, 1.0 - yes - no) / 2


def _ascii(text: str) -> bytes:
    return text.encode("ascii", errors="ignore")


def _token_at(tokens: Sequence[Token], position: int) -> tuple[Token, int]:
    """The token that holds the character at `position` of the text, and where it starts."""
    starts_at = 0
    for token in tokens:
        if position < starts_at + len(token.text):
            return token, starts_at
        starts_at += len(token.text)
    raise IndexError(position)
