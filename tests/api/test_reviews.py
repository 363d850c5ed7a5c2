from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import httpx
import pytest

from pipeline.runs import ReviewDetail
from tests.api.fakes import ALICE, BOB, FakeServices
from tests.api.test_results import ARTIFACTS, STORED
from workers.metrics import Metrics

DOCUMENT = {**STORED, "policy": {"questions": {"face": {"text": "Is a face to be seen?", "sensitive": False}}}}


def url(detail: ReviewDetail) -> str:
    return f"/v1/reviews/{detail.item.run_id}/{detail.item.question}"


def test_reviews_are_listed_in_pages(alice: httpx.Client, stores: FakeServices) -> None:
    details = [stores.ledger.add_review(ALICE) for _ in range(3)]
    stores.ledger.add_review(BOB)
    first = alice.get("/v1/reviews", params={"limit": 2}).json()
    assert [item["url"] for item in first["reviews"]] == [url(d) for d in details[:2]]
    assert (first["limit"], first["offset"], first["next_offset"]) == (2, 0, 2)
    second = alice.get("/v1/reviews", params={"limit": 2, "offset": 2}).json()
    assert [item["url"] for item in second["reviews"]] == [url(details[2])]
    assert second["next_offset"] is None


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 201}, {"limit": "x"}, {"offset": -1}, {"offset": 2**70}])
def test_a_page_out_of_bounds_is_bad_input(alice: httpx.Client, params: dict[str, Any]) -> None:
    answer = alice.get("/v1/reviews", params=params)
    assert answer.status_code == 422
    assert answer.json()["error"]["detail"].startswith(f"{next(iter(params))}: ")


def test_a_review_shows_the_pictures_of_its_evidence(alice: httpx.Client, stores: FakeServices) -> None:
    stores.objects.objects[ARTIFACTS, "r.json"] = json.dumps(DOCUMENT).encode()
    detail = stores.ledger.add_review(ALICE, result_key="r.json")
    body = alice.get(url(detail)).json()
    image = f"https://storage.test/{ARTIFACTS}/runs/1/1/001.jpg?expires=900"
    assert body["images"] == [{"keyframe": 1, "t_s": 2.5, "image": image}]
    assert (body["text"], body["sensitive"]) == ("Is a face to be seen?", False)
    assert (body["machine_answer"], body["answer"], body["history"]) == ("review", "review", [])


@pytest.mark.parametrize("result_key", [None, "erased.json"])
def test_a_review_outlives_its_pictures_and_then_counts_as_sensitive(
    alice: httpx.Client, stores: FakeServices, result_key: str | None
) -> None:
    body = alice.get(url(stores.ledger.add_review(ALICE, result_key=result_key))).json()
    assert (body["images"], body["text"], body["sensitive"]) == ([], None, True)


def test_an_answer_holds_and_enters_the_history(alice: httpx.Client, stores: FakeServices, metrics: Metrics) -> None:
    detail = stores.ledger.add_review(ALICE)
    given = {"answer": "positive", "who": " ada ", "why": "in the mirror,\nleft"}
    answer = alice.post(url(detail) + "/answers", json=given)
    body = answer.json()
    assert answer.status_code == 201
    assert body["answer"] == "positive"
    assert body["machine_answer"] == "review"
    assert [(a["answer"], a["who"], a["why"]) for a in body["history"]] == [("positive", "ada", "in the mirror,\nleft")]
    assert alice.get(url(detail)).json()["history"] == body["history"]
    assert alice.get("/v1/reviews").json()["reviews"] == []
    assert metrics.registry.get_sample_value("videosieve_reviews_answered_total", {"answer": "positive"}) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"answer": "review"}, "answer"),
        ({"answer": "maybe"}, "answer"),
        ({"answer": None}, "answer"),
        ({"who": ""}, "who"),
        ({"who": "  "}, "who"),
        ({"who": "ada\0"}, "who"),
        ({"who": "ada\nbob"}, "who"),
        ({"who": "x" * 201}, "who"),
        ({"why": " "}, "why"),
        ({"why": "nul \0"}, "why"),
        ({"why": "x" * 2001}, "why"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_faulty_answer_is_refused(
    alice: httpx.Client, stores: FakeServices, change: dict[str, Any], field: str
) -> None:
    detail = stores.ledger.add_review(ALICE)
    body = {"answer": "negative", "who": "ada", "why": "nothing there", **change}
    answer = alice.post(url(detail) + "/answers", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["detail"].startswith(f"{field}: ")
    assert alice.get(url(detail)).json()["history"] == []


@pytest.mark.parametrize("field", ["who", "why"])
def test_half_a_character_in_an_answer_is_refused(alice: httpx.Client, stores: FakeServices, field: str) -> None:
    body = json.dumps({"answer": "negative", "who": "ada", "why": "nothing", field: "a\ud800"})
    target = url(stores.ledger.add_review(ALICE)) + "/answers"
    answer = alice.post(target, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"]["detail"].startswith(f"{field}: ")


def test_another_tenants_review_is_not_there(bob: httpx.Client, stores: FakeServices) -> None:
    theirs = url(stores.ledger.add_review(ALICE))
    answer = {"answer": "negative", "who": "bob", "why": "mischief"}
    assert bob.get(theirs).status_code == 404
    assert bob.post(theirs + "/answers", json=answer).status_code == 404
    assert bob.get("/v1/reviews").json()["reviews"] == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/v1/reviews/{UUID(int=9)}/face", 404),
        ("/v1/reviews/nope/face", 422),
        (f"/v1/reviews/{UUID(int=9)}/FACE%00", 422),
        (f"/v1/reviews/{UUID(int=9)}/{'x' * 300}", 422),
        (f"/v1/reviews/{UUID(int=9)}/a%2Fb", 404),
    ],
)
def test_a_review_that_cannot_be_is_refused(alice: httpx.Client, path: str, status: int) -> None:
    answer = alice.get(path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
