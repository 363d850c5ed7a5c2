from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.cascade.vlm_part import ImagesPart
from pipeline.models.chat_client import ChatClient, Deadlines
from tests.vlm.canary import KNOWN
from tests.vlm.server import MODEL, USAGE, Behaviour, Call, says, serving, statement, status
from workers.cli import main
from workers.vlm_check import Finding, Grade, check_engine, is_usable


def good_engine(call: Call, *, most_images: int = 8, tokens: int = 260, follows_schema: bool = True) -> None:
    """Does all that is asked of an engine; `tokens` is what a picture takes."""
    if len(call.images) > most_images:
        status(400, json.dumps({"error": {"message": f"at most {most_images} images"}}))(call)
        return
    text = "blue, I would say"
    if "response_format" in call.body:
        schema = call.body["response_format"]["json_schema"]["schema"]["properties"]
        if "word" in schema:
            text = json.dumps({"word": schema["word"]["enum"][0], "number": 9}) if follows_schema else "hello"
        else:
            found = {question: KNOWN.get(question, statement()) for question in call.questions}
            text = json.dumps({"seen": "shapes", "answers": found})
    usage = USAGE | {"prompt_tokens": 1000 + tokens * len(call.images)}
    call.head()
    for piece in (text[:5], text[5:]):
        logprobs: Any = {"content": [{"token": piece, "logprob": -0.1}]} if call.body.get("logprobs") else None
        call.piece(piece, logprobs)
    call.end(usage=usage)


def findings(behaviour: Behaviour, *, model: str | None = MODEL) -> dict[str, Finding]:
    with (
        serving(default=behaviour) as server,
        ChatClient(server.url, api_key=None, deadlines=Deadlines(), max_connections=1) as client,
    ):
        return {found.name: found for found in check_engine(client, model=model, images=IMAGES)}


IMAGES = ImagesPart(max_images=8, max_pixels=448 * 448, pixels_per_token=784)
NAMES = [
    "reachable", "stream", "schema", "pictures", "picture_tokens", "prefix_cache", "logprobs", "known_answers",
]  # fmt: skip


def grades(found: dict[str, Finding]) -> Sequence[Grade]:
    return [finding.grade for finding in found.values()]


def test_a_good_engine_is_found_good() -> None:
    found = findings(good_engine)
    assert list(found) == NAMES
    assert set(grades(found)) == {Grade.OK}
    assert "8 of 8 questions" in found["known_answers"].found
    assert is_usable(list(found.values()))


def test_the_first_served_model_is_taken_where_none_is_named() -> None:
    assert set(grades(findings(good_engine, model=None))) == {Grade.OK}


def test_a_model_that_is_not_served_ends_the_check() -> None:
    found = findings(good_engine, model="other")
    assert list(found) == ["reachable", "model"]
    assert not is_usable(list(found.values()))


def test_an_ignored_schema_is_found() -> None:
    found = findings(lambda call: good_engine(call, follows_schema=False))
    assert found["schema"].grade is Grade.FAILED


def test_the_image_limit_is_found_and_said() -> None:
    found = findings(lambda call: good_engine(call, most_images=4))["pictures"]
    assert found.grade is Grade.FAILED
    assert "max_images to 4" in found.advice


def test_an_engine_with_no_room_for_the_policys_largest_request_is_found_out() -> None:
    def cramped(call: Call) -> None:
        is_large = sum(map(len, call.images)) > 100_000
        (status(400, '{"error": {"message": "too long"}}') if is_large else good_engine)(call)

    found = findings(cramped)
    assert found["pictures"].grade is Grade.OK  # as many, but small
    assert found["known_answers"].grade is Grade.FAILED
    assert "lower decision.vlm.images" in found["known_answers"].advice


def test_other_tokens_a_picture_are_measured() -> None:
    found = findings(lambda call: good_engine(call, tokens=1024))["picture_tokens"]
    assert found.grade is Grade.POOR
    assert found.advice == "set decision.vlm.images.pixels_per_token to 196"


def test_an_engine_that_fails_half_way_ends_the_check() -> None:
    found = findings(lambda call: good_engine(call) if "response_format" not in call.body else status(500)(call))
    assert list(found) == ["reachable", "stream", "schema"]
    assert found["schema"].grade is Grade.FAILED


def test_no_usage_no_cache_and_no_probabilities_are_poor_but_usable() -> None:
    def plain(call: Call) -> None:
        schema = call.body.get("response_format", {}).get("json_schema", {}).get("schema", {}).get("properties", {})
        if "answers" in schema:
            good_engine(call)
        else:
            text = json.dumps({"word": schema["word"]["enum"][0], "number": 7}) if schema else "blue"
            says(text, usage=None)(call)

    found = findings(plain)
    assert [name for name in found if found[name].grade is Grade.POOR] == [
        "stream", "picture_tokens", "prefix_cache", "logprobs",
    ]  # fmt: skip
    assert is_usable(list(found.values()))


def test_the_command_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(default=good_engine) as server:
        assert main(["vlm", "check", server.url, "--model", MODEL, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == NAMES


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "http://localhost:9"])
def test_an_engine_that_is_not_there_is_exit_code_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vlm", "check", url]) == 1
    assert "FAILED reachable" in capsys.readouterr().out


@pytest.mark.parametrize(
    "url", ["ftp://x/v1", "127.0.0.1:8000", "http://user:secret@host/v1", "http://h/v1?key=secret", ""]
)
def test_what_is_no_engines_address_is_the_callers_mistake(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vlm", "check", url]) == 2
    assert "secret" not in capsys.readouterr().err
