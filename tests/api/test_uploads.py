from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.api.fakes import ALICE, FakeServices
from workers.metrics import Metrics


def test_an_upload_is_told_where_to_send_the_file(alice: httpx.Client, stores: FakeServices) -> None:
    answer = alice.post("/v1/uploads", json={"filename": "clip.mp4", "content_type": "video/mp4", "size_bytes": 9})
    body = answer.json()
    upload_id = UUID(body["upload_id"])
    assert answer.status_code == 201
    assert answer.headers["Location"] == body["status_url"] == f"/v1/uploads/{upload_id}"
    assert body["state"] == "awaiting_upload"
    assert body["url"] == "https://storage.test/videosieve-originals"
    assert body["key"] == f"uploads/{ALICE.id}/{upload_id}/clip.mp4"
    assert body["fields"] == {"key": body["key"], "Content-Type": "video/mp4", "policy": "9..9 for 3600"}
    assert body["max_bytes"] == 1_000_000
    left = datetime.fromisoformat(body["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=3500) < left <= timedelta(seconds=3600)
    _, kept = stores.ledger.uploads[upload_id]
    assert (kept.key, kept.trace_id, kept.filename) == (body["key"], body["trace_id"], "clip.mp4")


def test_an_upload_is_counted_and_logged_without_what_is_signed(
    alice: httpx.Client, metrics: Metrics, logs: list[Any]
) -> None:
    body = alice.post("/v1/uploads", json={"filename": "clip.mp4"}).json()
    assert metrics.registry.get_sample_value("videosieve_uploads_created_total") == 1
    (created,) = [log for log in logs if log["event"] == "upload_created"]
    assert (created["upload_id"], created["trace_id"]) == (body["upload_id"], body["trace_id"])
    assert "policy" not in str(logs)
    assert "secret" not in str(logs)


def test_two_uploads_of_one_name_get_keys_of_their_own(alice: httpx.Client) -> None:
    keys = {alice.post("/v1/uploads", json={"filename": "clip.mp4"}).json()["key"] for _ in range(2)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    "name",
    ["../../x", "a\0b", "x" * 5000, "🎬", "", "C:\\Users\\Ada\\clip.mov", "; rm -rf /", "${filename}", "\u202e4pm"],
)
def test_a_hostile_name_stays_inside_its_uploads_folder(alice: httpx.Client, name: str) -> None:
    body = alice.post("/v1/uploads", json={"filename": name}).json()
    folder, _, last = body["key"].rpartition("/")
    assert folder == f"uploads/{ALICE.id}/{body['upload_id']}"
    assert 0 < len(last.encode()) <= 200
    assert last not in {".", ".."}
    assert alice.get(body["status_url"]).json()["filename"] == last


@pytest.mark.parametrize(
    "content_type", ["video/mp4", "VIDEO/QuickTime", "video/x-matroska", "application/octet-stream"]
)
def test_video_types_are_taken(alice: httpx.Client, content_type: str) -> None:
    body = alice.post("/v1/uploads", json={"filename": "a", "content_type": content_type}).json()
    assert body["fields"]["Content-Type"] == content_type.lower()


def test_an_oversize_file_is_refused_before_it_is_sent(alice: httpx.Client, stores: FakeServices) -> None:
    answer = alice.post("/v1/uploads", json={"filename": "a", "size_bytes": 1_000_001})
    assert answer.status_code == 413
    assert answer.json()["error"]["reason"] == "too_large"
    assert "1000000" in answer.json()["error"]["detail"]
    assert stores.ledger.uploads == {}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "filename"),
        ({"filename": None}, "filename"),
        ({"filename": 7}, "filename"),
        ({"filename": "a", "content_type": "text/html"}, "content_type"),
        ({"filename": "a", "content_type": "video/mp4\r\nx: y"}, "content_type"),
        ({"filename": "a", "content_type": "video/mp4\n"}, "content_type"),
        ({"filename": "a", "size_bytes": 0}, "size_bytes"),
        ({"filename": "a", "size_bytes": -1}, "size_bytes"),
        ({"filename": "a", "size_bytes": "many"}, "size_bytes"),
        ({"filename": "a", "bucket": "other"}, "bucket"),
        ([], "body"),
        ("clip.mp4", "body"),
        (None, "body"),
    ],
)
def test_a_faulty_request_is_refused_with_the_fields_name(alice: httpx.Client, body: Any, field: str) -> None:
    answer = alice.post("/v1/uploads", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["reason"] == "bad_input"
    assert answer.json()["error"]["detail"].startswith(f"{field}: ")


def test_half_a_character_is_left_out_of_a_name(alice: httpx.Client) -> None:
    body = b'{"filename": "a\\ud800.mp4"}'
    answer = alice.post("/v1/uploads", content=body, headers={"Content-Type": "application/json"})
    assert answer.json()["key"].endswith("/a.mp4")


def test_an_enormous_size_is_too_large_rather_than_a_crash(alice: httpx.Client) -> None:
    answer = alice.post("/v1/uploads", json={"filename": "a", "size_bytes": 10**30})
    assert answer.status_code in {413, 422}


def test_the_state_of_an_upload_can_be_read(alice: httpx.Client) -> None:
    created = alice.post("/v1/uploads", json={"filename": "clip.mp4"}).json()
    body = alice.get(created["status_url"]).json()
    assert body.pop("created_at")
    assert body == {
        "upload_id": created["upload_id"],
        "filename": "clip.mp4",
        "state": "awaiting_upload",
        "expires_at": created["expires_at"],
        "trace_id": created["trace_id"],
        "run_id": None,
        "reason": None,
        "detail": None,
    }


@pytest.mark.parametrize("suffix", ["", "/result"])
def test_another_tenants_upload_is_not_there(alice: httpx.Client, bob: httpx.Client, suffix: str) -> None:
    url = alice.post("/v1/uploads", json={"filename": "clip.mp4"}).json()["status_url"] + suffix
    theirs, none = bob.get(url), bob.get(f"/v1/uploads/{uuid4()}{suffix}")
    assert theirs.status_code == none.status_code == 404
    assert theirs.json() == none.json()


def test_an_upload_that_expired_says_so(alice: httpx.Client, stores: FakeServices) -> None:
    created = alice.post("/v1/uploads", json={"filename": "clip.mp4"}).json()
    owner, status = stores.ledger.uploads[UUID(created["upload_id"])]
    expired = replace(status, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    stores.ledger.uploads[status.upload_id] = (owner, expired)
    body = alice.get(created["status_url"]).json()
    assert (body["state"], body["reason"]) == ("awaiting_upload", "upload_expired")
    result = alice.get(created["status_url"] + "/result")
    assert result.status_code == 202
    assert result.json()["reason"] == "upload_expired"
    assert result.headers["Retry-After"] == "60"


def test_an_id_that_is_none_is_bad_input(alice: httpx.Client) -> None:
    answer = alice.get("/v1/uploads/not-an-id")
    assert answer.status_code == 422
    assert answer.json()["error"]["detail"].startswith("upload_id: ")
