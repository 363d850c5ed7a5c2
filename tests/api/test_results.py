from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest

from pipeline.advice import advice
from pipeline.verdict import Answer, RunState
from tests.api.fakes import FakeServices, verdict_view

ARTIFACTS = "videosieve-artifacts"
STORED: dict[str, Any] = {
    "schema_version": 1,
    "path": "s3://videosieve-originals/clip.mp4",
    "keyframes": [
        {"t_s": 0.0, "pts": 0, "reason": "start", "score": 1.0, "image": None},
        {"t_s": 2.5, "pts": 75, "reason": "scene_cut", "score": 0.9, "image": "runs/1/1/001.jpg"},
    ],
    "state": "in_review",
    "verdicts": [
        {"question": "face", "answer": "review", "score": 0.5, "stage": "review", "evidence": [1], "reason": "no_vlm"},
        {"question": "nudity", "answer": "negative", "score": 0.1, "stage": "detector", "evidence": [0, 1]},
    ],
    "money": {"currency": "USD", "total_nano": 7},
}


@pytest.fixture
def upload(alice: httpx.Client) -> dict[str, Any]:
    created: dict[str, Any] = alice.post("/v1/uploads", json={"filename": "clip.mp4"}).json()
    return created


def finish(stores: FakeServices, upload: dict[str, Any], **changes: object) -> None:
    stores.objects.objects[ARTIFACTS, "runs/1/1/result.json"] = json.dumps(STORED).encode()
    stores.ledger.add_run(UUID(upload["upload_id"]), **{"result_key": "runs/1/1/result.json", **changes})


def test_a_result_is_the_stored_document_with_its_ids(
    alice: httpx.Client, stores: FakeServices, upload: dict[str, Any]
) -> None:
    finish(stores, upload, state=RunState.IN_REVIEW)
    answer = alice.get(upload["status_url"] + "/result")
    body = answer.json()
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert (body["upload_id"], body["trace_id"]) == (upload["upload_id"], upload["trace_id"])
    assert body["money"] == STORED["money"]
    assert body["state"] == "in_review"


def test_pictures_become_urls_that_expire(alice: httpx.Client, stores: FakeServices, upload: dict[str, Any]) -> None:
    finish(stores, upload, state=RunState.DECIDED)
    body = alice.get(upload["status_url"] + "/result").json()
    images = [keyframe["image"] for keyframe in body["keyframes"]]
    assert images == [None, f"https://storage.test/{ARTIFACTS}/runs/1/1/001.jpg?expires=900"]
    assert datetime.fromisoformat(body["images_expire_at"]) > datetime.now(UTC)


def test_a_persons_answer_holds_and_the_machines_is_kept_beside_it(
    alice: httpx.Client, stores: FakeServices, upload: dict[str, Any]
) -> None:
    answered = verdict_view(Answer.POSITIVE, machine_answer=Answer.REVIEW, answered_by="ada")
    finish(stores, upload, state=RunState.DECIDED, verdicts=(answered,))
    body = alice.get(upload["status_url"] + "/result").json()
    shown = [(v["answer"], v["machine_answer"], v["answered_by"]) for v in body["verdicts"]]
    assert shown == [("positive", "review", "ada"), ("negative", "negative", None)]
    assert body["state"] == "decided"


@pytest.mark.parametrize("state", [RunState.REJECTED, RunState.FAILED, RunState.SUPERSEDED])
def test_a_run_that_ended_without_a_result_says_why(
    alice: httpx.Client, stores: FakeServices, upload: dict[str, Any], state: RunState
) -> None:
    run = stores.ledger.add_run(UUID(upload["upload_id"]), state=state, reason="not_a_video", detail="plain text")
    answer = alice.get(upload["status_url"] + "/result")
    assert answer.status_code == 200
    assert answer.json() == {
        "upload_id": upload["upload_id"],
        "run_id": str(run.run_id),
        "trace_id": upload["trace_id"],
        "state": state.value,
        "rejected": {"reason": "not_a_video", "detail": "plain text", "advice": advice("not_a_video")},
    }


def test_before_the_file_arrives_the_answer_is_to_ask_again(alice: httpx.Client, upload: dict[str, Any]) -> None:
    answer = alice.get(upload["status_url"] + "/result")
    assert answer.status_code == 202
    assert answer.headers["Retry-After"] == "5"
    assert answer.json() == {"state": "awaiting_upload", "retry_after_s": 5, "reason": None, "detail": None}


@pytest.mark.parametrize("state", [state for state in RunState if state.is_open])
def test_while_a_run_is_open_the_answer_is_to_ask_again(
    alice: httpx.Client, stores: FakeServices, upload: dict[str, Any], state: RunState
) -> None:
    stores.ledger.add_run(UUID(upload["upload_id"]), state=state)
    answer = alice.get(upload["status_url"] + "/result")
    assert answer.status_code == 202
    assert answer.json()["state"] == state.value
    assert int(answer.headers["Retry-After"]) == answer.json()["retry_after_s"] > 0


def test_a_result_that_was_erased_is_not_found(
    alice: httpx.Client, stores: FakeServices, upload: dict[str, Any]
) -> None:
    finish(stores, upload, state=RunState.DECIDED)
    stores.objects.objects.clear()
    answer = alice.get(upload["status_url"] + "/result")
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == "not_found"
    assert "runs/1/1" not in answer.text
