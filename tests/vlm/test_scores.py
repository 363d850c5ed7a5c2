from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.chat import Token
from pipeline.vlm.answers import Said, Statement
from pipeline.vlm.scores import ScoreSource, score_of


def answer(said: str, *, seen: str = "x") -> str:
    return json.dumps({"seen": seen, "answers": {"face": {"answer": said, "score": 90, "images": [0]}}})


def cut(text: str, word: str, *tokens: Token, lead: str = "") -> list[Token]:
    """`text` as tokens, where `lead + word` became `tokens`."""
    before, after = text.split(lead + word + '"', 1)
    return [Token(before, 0.9), *tokens, Token('"' + after, 0.9)]


def test_the_score_is_the_probability_of_the_answers_token() -> None:
    tokens = cut(answer("yes"), "yes", Token("yes", 0.9, (("yes", 0.9), ("no", 0.1))))
    score, source = score_of("face", Statement(Said.YES, 50, (0,)), answer("yes"), tokens)
    assert score == pytest.approx(0.9)
    assert source is ScoreSource.LOGPROBS


def test_a_sure_no_scores_low() -> None:
    tokens = cut(answer("no"), "no", Token("no", 0.98, (("yes", 0.02), ("no", 0.98))))
    assert score_of("face", Statement(Said.NO, 50, ()), answer("no"), tokens)[0] == pytest.approx(0.02)


def test_a_token_that_the_grammar_forced_is_unknown_and_not_certain() -> None:
    tokens = cut(answer("yes"), "yes", Token("yes", 1e-6, (("The", 0.8), ("A", 0.1))))
    assert score_of("face", Statement(Said.YES, 100, (0,)), answer("yes"), tokens)[0] == pytest.approx(0.5, abs=1e-3)


def test_one_letter_tokens_and_tokens_that_begin_with_the_quote_are_understood() -> None:
    letters = cut(
        answer("yes"), "yes", Token("y", 0.7, (("y", 0.7), ("n", 0.2), ("u", 0.1))), Token("e", 1), Token("s", 1)
    )
    assert score_of("face", Statement(Said.YES, 50, (0,)), answer("yes"), letters)[0] == pytest.approx(0.75)
    quoted = cut(answer("no"), "no", Token(' "no', 0.8, ((' "no', 0.8), (' "yes', 0.2), (" maybe", 0.0))), lead=' "')
    assert score_of("face", Statement(Said.NO, 50, ()), answer("no"), quoted)[0] == pytest.approx(0.2)


def test_without_probabilities_the_models_own_word_counts_but_never_as_certain() -> None:
    for stated in (0, 1, 50, 99, 100):
        score, source = score_of("face", Statement(Said.YES, stated, (0,)), answer("yes"), [])
        assert source is ScoreSource.STATED
        assert 0 < score < 1


def test_tokens_that_do_not_add_up_to_the_text_are_not_believed() -> None:
    tokens = cut(answer("yes"), "yes", Token("yes", 0.9))
    assert score_of("face", Statement(Said.YES, 40, (0,)), answer("yes") + " ", tokens)[1] is ScoreSource.STATED
    assert score_of("face", Statement(Said.YES, 40, (0,)), answer("yes"), tokens[:-1])[1] is ScoreSource.STATED


def test_a_character_in_several_tokens_costs_no_probability() -> None:
    text = '{"seen": "\N{HANGUL SYLLABLE GA}", "answers": {"face": {"answer": "no", "score": 9, "images": []}}}'
    before, after = text.split('no"', 1)
    head, tail = before.split("\N{HANGUL SYLLABLE GA}")
    part = Token("\N{REPLACEMENT CHARACTER}", 1)
    answered = Token("no", 0.9, (("no", 0.9), ("yes", 0.1)))
    tokens = [Token(head, 1), part, part, Token(tail, 1), answered, Token('"' + after, 1)]
    score, source = score_of("face", Statement(Said.NO, 50, ()), text, tokens)
    assert score == pytest.approx(0.1)
    assert source is ScoreSource.LOGPROBS


@pytest.mark.parametrize("special", ["<|im_end|>", "</s>", "<|image_pad|>", '"face": {"answer": "no"'])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_token_that_is_no_text_costs_no_probability_wherever_it_stands(special: str, place: int) -> None:
    """An engine that is behind sends several tokens at once, and among them the one that ends the answer."""
    tokens = cut(answer("yes"), "yes", Token("yes", 0.9, (("yes", 0.9), ("no", 0.1))))
    tokens.insert(place, Token(special, 1.0))
    score, source = score_of("face", Statement(Said.YES, 50, (0,)), answer("yes"), tokens)
    assert score == pytest.approx(0.9)
    assert source is ScoreSource.LOGPROBS


def test_a_decoy_inside_a_string_is_not_taken_for_the_answer() -> None:
    text = answer("no", seen='"face": {"answer": "no"')
    tokens = [Token(text[:30], 0.99), Token(text[30:], 0.99)]
    before, after = text.rsplit('no"', 1)
    tokens = [Token(before, 0.5), Token("no", 0.97, (("no", 0.97), ("yes", 0.03))), Token('"' + after, 0.5)]
    assert score_of("face", Statement(Said.NO, 50, ()), text, tokens)[0] == pytest.approx(0.03)


@given(
    st.lists(st.tuples(st.text(max_size=5), st.floats(0, 1)), max_size=6), st.floats(0, 1), st.sampled_from(list(Said))
)
def test_whatever_the_engine_says_the_score_is_a_probability_and_never_certain(
    alternatives: list[tuple[str, float]], probability: float, said: Said
) -> None:
    text = answer(said.value)
    tokens = cut(text, said.value, Token(said.value, probability, tuple(alternatives)))
    score, _ = score_of("face", Statement(said, 100, (0,)), text, tokens)
    assert 0 < score < 1
