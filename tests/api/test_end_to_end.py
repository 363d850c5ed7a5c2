"""The API over a real PostgreSQL and a real S3 emulator, which checks signatures and POST policies."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from pipeline.advice import advice
from pipeline.errors import Reason
from pipeline.media import ObjectRef
from pipeline.runs import Claimed, Commit, Lane
from pipeline.stores.aws import Wiring
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from pipeline.verdict import Answer, CascadeOutcome, RunState, Verdict
from tests.api.fakes import client, served
from workers.api.app import create_app
from workers.metrics import Metrics
from workers.settings import Settings

HASH = "d" * 64
PICTURE = b"\xff\xd8 a picture"
HOSTILE = ["../../x", "a\0b", "x" * 5000, "🎬 déjà.mp4", "", "C:\\Users\\Ada\\clip.mov", "; rm -rf /", "${filename}"]


@dataclass(frozen=True)
class RealServices:
    ledger: Ledger
    objects: ObjectStore


@dataclass(frozen=True)
class Stage:
    """A served API, and the stores behind it."""

    base_url: str
    ledger: Ledger
    objects: ObjectStore
    artifacts: str
    tenant: httpx.Client

    def create(self, **request: Any) -> dict[str, Any]:
        created: dict[str, Any] = self.tenant.post("/v1/uploads", json={"filename": "clip.mp4", **request}).json()
        return created

    def claim(self, created: dict[str, Any], bucket: str) -> Claimed:
        """As a worker does on the event of the upload."""
        claimed = self.ledger.claim(
            self.objects.resolve(ObjectRef(bucket, created["key"])),
            policy="moderation",
            decision_hash=HASH,
            lane=Lane.UPLOADS,
            worker="test",
            lease_s=60,
            trace_id="another",
            event_at=None,
        )
        assert isinstance(claimed, Claimed)
        return claimed


@pytest.fixture
def stage(ledger: Ledger, objects: ObjectStore, stack: Wiring) -> Iterator[Stage]:
    storage = {"originals_bucket": stack.originals, "artifacts_bucket": stack.artifacts}
    settings = Settings.model_validate({"storage": storage, "api": {"max_upload_bytes": 1000, "upload_expires_s": 60}})
    app = create_app(RealServices(ledger, objects), settings, Metrics(CollectorRegistry()))
    _, key = ledger.add_tenant("alice")
    with served(app) as base_url, client(base_url, key) as tenant:
        yield Stage(base_url, ledger, objects, stack.artifacts, tenant)


def send(created: dict[str, Any], content: bytes, **changed: str) -> httpx.Response:
    fields = created["fields"] | changed
    return httpx.post(created["url"], data=fields, files={"file": ("local name.mp4", content)}, trust_env=False)


@pytest.mark.parametrize("filename", HOSTILE)
def test_a_file_of_any_name_arrives_at_exactly_its_key(stage: Stage, stack: Wiring, filename: str) -> None:
    created = stage.create(filename=filename)
    assert send(created, b"some bytes").is_success
    assert [found.key for found in stage.objects.list(stack.originals, "uploads/")] == [created["key"]]
    assert stage.objects.get(stack.originals, created["key"]) == b"some bytes"


@pytest.mark.parametrize("filename", ["plain.mp4", "; rm -rf $HOME \"'.mp4", "a,b=c@d.mp4", "🎬 déjà vu.mp4"])
def test_the_fields_work_with_plain_curl(stage: Stage, stack: Wiring, tmp_path: Path, filename: str) -> None:
    created = stage.create(filename=filename, content_type="video/mp4")
    (tmp_path / "clip.mp4").write_bytes(b"by curl")
    form = [part for name, value in created["fields"].items() for part in ("-F", f"{name}={value}")]
    command = ["curl", "-sS", "--fail", "--noproxy", "*", *form, "-F", "file=@clip.mp4", created["url"]]
    sent = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert sent.returncode == 0, sent.stderr + sent.stdout
    assert stage.objects.get(stack.originals, created["key"]) == b"by curl"


@pytest.mark.parametrize(
    ("content", "changed"),
    [
        (b"", {}),
        (b"x" * 1001, {}),
        (b"x", {"key": "uploads/elsewhere"}),
        (b"x", {"Content-Type": "text/html"}),
        (b"x", {"x-amz-signature": "0" * 64}),
    ],
    ids=["empty", "too large", "another key", "another type", "another signature"],
)
def test_storage_takes_nothing_but_what_was_agreed(
    stage: Stage, stack: Wiring, content: bytes, changed: dict[str, str]
) -> None:
    assert 400 <= send(stage.create(), content, **changed).status_code < 500
    assert list(stage.objects.list(stack.originals, "")) == []


def test_storage_takes_nothing_after_the_upload_expired(ledger: Ledger, objects: ObjectStore, stack: Wiring) -> None:
    storage = {"originals_bucket": stack.originals, "artifacts_bucket": stack.artifacts}
    settings = Settings.model_validate({"storage": storage, "api": {"upload_expires_s": 1}})
    _, key = ledger.add_tenant("alice")
    app = create_app(RealServices(ledger, objects), settings, Metrics(CollectorRegistry()))
    with served(app) as base_url, client(base_url, key) as tenant:
        created = tenant.post("/v1/uploads", json={"filename": "clip.mp4"}).json()
        time.sleep(2.1)
        assert send(created, b"late").status_code == 403
        assert tenant.get(created["status_url"]).json()["reason"] == "upload_expired"


def test_an_upload_is_followed_to_its_answer(stage: Stage, stack: Wiring) -> None:
    created = stage.create(size_bytes=10)
    result_url = created["status_url"] + "/result"
    assert stage.tenant.get(result_url).status_code == 202
    send(created, b"some bytes")
    claimed = stage.claim(created, stack.originals)
    assert stage.tenant.get(created["status_url"]).json()["state"] == "processing"
    assert stage.tenant.get(result_url).status_code == 202

    in_doubt(stage, claimed)
    result = stage.tenant.get(result_url).json()
    assert (result["state"], result["trace_id"]) == ("in_review", created["trace_id"])
    assert httpx.get(result["keyframes"][0]["image"], trust_env=False).content == PICTURE

    (waiting,) = stage.tenant.get("/v1/reviews").json()["reviews"]
    review = stage.tenant.get(waiting["url"]).json()
    assert httpx.get(review["images"][0]["image"], trust_env=False).content == PICTURE
    answer = {"answer": "positive", "who": "ada", "why": "in the mirror"}
    assert stage.tenant.post(waiting["url"] + "/answers", json=answer).status_code == 201

    assert stage.tenant.get("/v1/reviews").json()["reviews"] == []
    decided = stage.tenant.get(result_url).json()
    (verdict,) = decided["verdicts"]
    assert decided["state"] == "decided"
    assert (verdict["answer"], verdict["machine_answer"], verdict["answered_by"]) == ("positive", "review", "ada")


def in_doubt(stage: Stage, claimed: Claimed) -> None:
    """Commit a run whose one question waits for a person, with its result document and picture."""
    folder = f"runs/{claimed.run_id}/{claimed.fence}"
    verdict = Verdict(
        "face", Answer.REVIEW, 0.5, "review", None, None, "moderation", HASH, "ops", (0,), Reason.UNDECIDED
    )
    document = {
        "keyframes": [{"t_s": 0.0, "pts": 0, "image": f"{folder}/000.jpg"}],
        "verdicts": [{"question": "face", "answer": "review", "score": 0.5, "stage": "review", "evidence": [0]}],
    }
    stage.objects.put(stage.artifacts, f"{folder}/000.jpg", PICTURE, "image/jpeg")
    stage.objects.put(stage.artifacts, f"{folder}/result.json", json.dumps(document).encode(), "application/json")
    commit = Commit(RunState.IN_REVIEW, CascadeOutcome((verdict,), ()), f"{folder}/result.json", "USD")
    stage.ledger.commit(claimed.run_id, claimed.fence, commit)


def test_a_rejected_video_says_why(stage: Stage, stack: Wiring) -> None:
    created = stage.create()
    send(created, b"plain text")
    claimed = stage.claim(created, stack.originals)
    rejected = Commit(RunState.REJECTED, reason=Reason.NOT_A_VIDEO, detail="plain text")
    stage.ledger.commit(claimed.run_id, claimed.fence, rejected)
    result = stage.tenant.get(created["status_url"] + "/result").json()
    assert result["state"] == "rejected"
    assert result["rejected"] == {"reason": "not_a_video", "detail": "plain text", "advice": advice("not_a_video")}


def test_another_tenant_sees_nothing_of_it(stage: Stage, stack: Wiring) -> None:
    created = stage.create()
    send(created, b"some bytes")
    claimed = stage.claim(created, stack.originals)
    in_doubt(stage, claimed)
    _, key = stage.ledger.add_tenant("bob")
    review_url = f"/v1/reviews/{claimed.run_id}/face"
    answer = {"answer": "negative", "who": "bob", "why": "mischief"}
    with client(stage.base_url, key) as bob:
        assert bob.get(created["status_url"]).status_code == 404
        assert bob.get(created["status_url"] + "/result").status_code == 404
        assert bob.get(review_url).status_code == 404
        assert bob.post(review_url + "/answers", json=answer).status_code == 404
        assert bob.get("/v1/reviews").json()["reviews"] == []
    detail = stage.ledger.review(claimed.run_id, "face")
    assert detail is not None
    assert detail.history == ()


def test_a_withdrawn_key_opens_nothing_any_more(stage: Stage) -> None:
    _, key = stage.ledger.add_tenant("carol")
    with client(stage.base_url, key) as carol:
        assert carol.get("/v1/reviews").status_code == 200
        stage.ledger.revoke_key(key.split("_")[1])
        assert carol.get("/v1/reviews").status_code == 401


def test_readiness_names_a_bucket_that_is_missing(ledger: Ledger, objects: ObjectStore, stack: Wiring) -> None:
    storage = {"originals_bucket": stack.originals, "artifacts_bucket": "not-there"}
    app = create_app(
        RealServices(ledger, objects), Settings.model_validate({"storage": storage}), Metrics(CollectorRegistry())
    )
    with served(app) as base_url, client(base_url) as nobody:
        answer = nobody.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {
        "database": "ok",
        "originals_bucket": "ok",
        "artifacts_bucket": "bad_setting",
    }


def test_without_a_database_every_request_is_asked_to_come_back(objects: ObjectStore, stack: Wiring) -> None:
    ledger = Ledger.connect("postgresql://nobody@127.0.0.1:1/none")
    storage = {"originals_bucket": stack.originals, "artifacts_bucket": stack.artifacts}
    app = create_app(
        RealServices(ledger, objects), Settings.model_validate({"storage": storage}), Metrics(CollectorRegistry())
    )
    with served(app) as base_url, client(base_url, "vs_0123456789ab_secret") as tenant:
        refused, ready = tenant.get("/v1/reviews"), tenant.get("/readyz")
        assert tenant.get("/healthz").status_code == 200
    ledger.close()
    assert refused.status_code == ready.status_code == 503
    assert refused.json()["error"]["reason"] == "database_unavailable"
    assert int(refused.headers["Retry-After"]) > 0
    assert ready.json()["checks"]["database"] == "database_unavailable"


def test_every_answer_is_kept_and_the_latest_holds(stage: Stage, stack: Wiring) -> None:
    created = stage.create()
    send(created, b"some bytes")
    claimed = stage.claim(created, stack.originals)
    in_doubt(stage, claimed)
    url = f"/v1/reviews/{claimed.run_id}/face"
    for who, answer in (("ada", "positive"), ("bea", "negative")):
        body = {"answer": answer, "who": who, "why": "looked at it"}
        assert stage.tenant.post(url + "/answers", json=body).status_code == 201
    shown = stage.tenant.get(url).json()
    assert [entry["who"] for entry in shown["history"]] == ["ada", "bea"]
    assert shown["answer"] == "negative"
