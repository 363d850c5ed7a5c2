"""What holds for every request: faults, bounds, ids, logs, metrics, health, documentation."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from pipeline.errors import FatalError, PermanentError, Reason, TransientError, UserError
from tests.api.fakes import ALICE, FakeServices, client, database_down, served, wait_until
from workers.api.app import create_app
from workers.api.middleware import BodyLimit
from workers.metrics import Metrics
from workers.settings import Settings

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"", 422),
        (b'{"filename": "a"', 422),
        (b"\x80abc", 400),
        (b"[" * 60_000, 400),
        (b'{"filename": ' + b"9" * 10_000 + b"}", 400),
        (b'{"filename": "a", "size_bytes": NaN}', 422),
    ],
)
def test_a_body_that_is_no_json_is_bad_input(alice: httpx.Client, body: bytes, status: int) -> None:
    answer = alice.post("/v1/uploads", content=body, headers=JSON)
    assert answer.status_code == status
    assert answer.json()["error"]["reason"] == "bad_input"


def test_json_that_does_not_say_so_is_told_to(alice: httpx.Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = alice.post("/v1/uploads", content=b'{"filename": "a"}', headers=form)
    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["error"]["detail"]


def test_a_refusal_never_repeats_what_was_sent(alice: httpx.Client) -> None:
    answer = alice.post("/v1/uploads", json={"filename": "a", "content_type": "<script>"})
    assert "<script>" not in answer.text


def test_a_huge_body_is_refused_by_its_declared_length(alice: httpx.Client) -> None:
    answer = alice.post("/v1/uploads", content=b"x" * 70_000, headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["reason"] == "too_large"


def test_a_huge_body_is_refused_while_it_arrives_in_chunks(nobody: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 8192

    answer = nobody.post("/v1/uploads", content=chunks(), headers=JSON)
    assert answer.status_code == 413


def test_the_largest_body_is_taken(alice: httpx.Client) -> None:
    frame = len(b'{"filename":""}')
    answer = alice.post("/v1/uploads", content=b'{"filename":"' + b"x" * (65_536 - frame) + b'"}', headers=JSON)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/uploads", "POST"),
        ("DELETE", f"/v1/uploads/{UUID(int=9)}", "GET"),
        ("PUT", "/v1/reviews", "GET"),
        ("POST", "/healthz", "GET"),
        ("BREW", "/metrics", "GET"),
    ],
)
def test_a_wrong_method_is_refused_and_the_right_one_named(
    alice: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = alice.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == allowed
    assert answer.json()["error"]["reason"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/upload", "/docs", "/redoc", "/v1/uploads/", "/%00", "/v1/../metrics/x"]
)
def test_an_unknown_route_is_not_found_in_the_same_shape(alice: httpx.Client, path: str) -> None:
    answer = alice.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == "not_found"


def test_while_the_database_is_down_callers_are_asked_to_come_back(
    alice: httpx.Client, stores: FakeServices, logs: list[Any]
) -> None:
    stores.ledger.failure = database_down()
    answer = alice.get("/v1/reviews")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "3"
    assert answer.json()["error"]["reason"] == "database_unavailable"
    assert "10.0.0.7" not in answer.text
    (warning,) = [log for log in logs if log["event"] == "api_dependency_failed"]
    assert "10.0.0.7" in warning["detail"]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (TransientError(Reason.STORE_UNAVAILABLE, "x"), 503, "store_unavailable"),
        (TransientError(Reason.THROTTLED, "x", retry_after_s=0.0), 503, "throttled"),
        (FatalError(Reason.BAD_SETTING, "bucket b-17 is missing"), 500, "internal_error"),
        (PermanentError(Reason.NOT_FOUND, "x"), 404, "not_found"),
        (PermanentError(Reason.CORRUPT, "b-17"), 500, "internal_error"),
        (UserError(Reason.BAD_INPUT, "no such thing"), 422, "bad_input"),
        (UserError(Reason.BAD_SETTING, "b-17"), 500, "internal_error"),
    ],
)
def test_each_error_of_the_stores_has_its_answer(
    alice: httpx.Client, stores: FakeServices, error: Exception, status: int, reason: str
) -> None:
    stores.objects.failure = error
    answer = alice.post("/v1/uploads", json={"filename": "a"})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (status, reason)
    assert "b-17" not in answer.text
    assert stores.ledger.uploads == {}


def test_what_nobody_foresaw_is_logged_with_its_traceback_and_answered_without(
    alice: httpx.Client, stores: FakeServices, logs: list[Any]
) -> None:
    stores.objects.failure = ZeroDivisionError("hidden detail")
    answer = alice.post("/v1/uploads", json={"filename": "a"}, headers={"X-Request-Id": "find-me"})
    assert answer.status_code == 500
    assert answer.headers["X-Request-Id"] == "find-me"
    assert answer.json()["error"]["reason"] == "internal_error"
    assert "hidden" not in answer.text
    (crash,) = [log for log in logs if log["event"] == "api_crashed"]
    assert crash["exc_info"]
    assert crash["request_id"] == "find-me"


def test_a_sound_request_id_is_kept_and_another_replaced(nobody: httpx.Client) -> None:
    assert nobody.get("/healthz", headers={"X-Request-Id": "abc-1.2_3"}).headers["X-Request-Id"] == "abc-1.2_3"
    for unsound in ("", "two words", "x" * 65, "é"):
        given = nobody.get("/healthz", headers=[(b"X-Request-Id", unsound.encode())]).headers["X-Request-Id"]
        assert re.fullmatch(r"[0-9a-f]{32}", given)


def test_a_request_is_one_log_line_without_its_key_or_ids(alice: httpx.Client, logs: list[Any]) -> None:
    alice.get(f"/v1/uploads/{uuid4()}", headers={"X-Request-Id": "find-me"})

    def ours() -> list[Any]:
        return [log for log in logs if log["request_id"] == "find-me"]

    wait_until(lambda: len(ours()) > 0, "the request is logged")
    (line,) = ours()
    assert line.pop("ms") >= 0
    assert line == {
        "event": "api_request",
        "log_level": "info",
        "method": "GET",
        "request_id": "find-me",
        "route": "/v1/uploads/{upload_id}",
        "status": 404,
        "tenant_id": str(ALICE.id),
    }


def test_requests_are_counted_by_template_so_that_labels_stay_few(alice: httpx.Client, metrics: Metrics) -> None:
    for path in (f"/v1/uploads/{uuid4()}", f"/v1/uploads/{uuid4()}", f"/nowhere/{uuid4()}"):
        alice.get(path)
    alice.request("BREW", "/nowhere")

    def count(method: str, route: str, status: str) -> float | None:
        labels = {"method": method, "route": route, "status": status}
        return metrics.registry.get_sample_value("videosieve_api_requests_total", labels)

    wait_until(lambda: count("other", "other", "404") == 1, "an unknown method is counted as other")
    assert count("GET", "/v1/uploads/{upload_id}", "404") == 2
    assert count("GET", "other", "404") == 1
    sample = "videosieve_api_request_seconds_count"
    assert metrics.registry.get_sample_value(sample, {"route": "/v1/uploads/{upload_id}"}) == 2


def test_a_body_that_never_ends_is_given_up(stores: FakeServices, settings: Settings, metrics: Metrics) -> None:
    app = BodyLimit(create_app(stores, settings, metrics), deadline_s=0.2)
    with served(app) as base_url, socket.create_connection(("127.0.0.1", int(base_url.rpartition(":")[2]))) as slow:
        slow.sendall(b"POST /v1/uploads HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        started = time.monotonic()
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started < 10


def test_a_client_that_leaves_early_does_no_harm(base_url: str, metrics: Metrics) -> None:
    with socket.create_connection(("127.0.0.1", int(base_url.rpartition(":")[2]))) as leaver:
        leaver.sendall(b"POST /v1/uploads HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    labels = {"method": "POST", "route": "other", "status": "none"}
    wait_until(lambda: metrics.registry.get_sample_value("videosieve_api_requests_total", labels) == 1, "it is counted")
    with client(base_url) as healthy:
        assert healthy.get("/healthz").status_code == 200


def test_health_needs_no_key_and_no_database(nobody: httpx.Client, stores: FakeServices) -> None:
    stores.ledger.failure = database_down()
    assert nobody.get("/healthz").json() == {"status": "ok"}


def test_readiness_reaches_the_database_and_both_buckets(nobody: httpx.Client) -> None:
    answer = nobody.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ok",
        "checks": {"database": "ok", "originals_bucket": "ok", "artifacts_bucket": "ok"},
    }


def test_what_cannot_be_reached_is_named(nobody: httpx.Client, stores: FakeServices) -> None:
    stores.ledger.failure = database_down()
    stores.objects.missing_buckets = {"videosieve-artifacts"}
    answer = nobody.get("/readyz")
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.json() == {
        "error": {"reason": "database_unavailable", "detail": "not reachable: database, artifacts_bucket"},
        "checks": {"database": "database_unavailable", "originals_bucket": "ok", "artifacts_bucket": "bad_setting"},
    }


def test_metrics_are_served_in_prometheus_exposition(alice: httpx.Client, nobody: httpx.Client) -> None:
    alice.post("/v1/uploads", json={"filename": "a"})
    answer = nobody.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert "videosieve_uploads_created_total 1.0" in answer.text


def test_the_api_documents_itself(nobody: httpx.Client) -> None:
    described = nobody.get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["api_key"]["scheme"] == "bearer"
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            if path.startswith("/v1/"):
                assert operation["security"] == [{"api_key": []}], path
                assert {"401", "422", "503"} <= set(operation["responses"]), path
    assert "HTTPValidationError" not in described["components"]["schemas"]
