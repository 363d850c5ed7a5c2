from __future__ import annotations

from uuid import UUID

import httpx
import pytest

from tests.api.fakes import FakeServices

ID = UUID(int=9)
PROTECTED = [
    ("POST", "/v1/uploads"),
    ("GET", f"/v1/uploads/{ID}"),
    ("GET", f"/v1/uploads/{ID}/result"),
    ("GET", "/v1/reviews"),
    ("GET", f"/v1/reviews/{ID}/face"),
    ("POST", f"/v1/reviews/{ID}/face/answers"),
]


@pytest.mark.parametrize(("method", "path"), PROTECTED)
def test_every_route_under_v1_wants_a_key(nobody: httpx.Client, method: str, path: str) -> None:
    answer = nobody.request(method, path)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="videosieve"'
    assert answer.json()["error"]["reason"] == "unauthenticated"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Basic dXNlcjpwYXNz",
        b"vs_alice_secret-1",
        b"Bearer alice_secret-1",
        b"Bearer vs_",
        b"Bearer vs_alice_secret-1 extra",
        b"Bearer vs_\xe9\xff",
        b"Bearer vs_" + b"a" * 5000,
    ],
)
def test_a_malformed_key_is_refused_without_asking_the_ledger(
    nobody: httpx.Client, stores: FakeServices, header: bytes
) -> None:
    answer = nobody.get("/v1/reviews", headers=[(b"Authorization", header)])
    assert answer.status_code == 401
    assert 'error="invalid_request"' in answer.headers["WWW-Authenticate"]
    assert stores.ledger.authenticated == []


def test_two_authorization_headers_are_refused(nobody: httpx.Client) -> None:
    header = (b"Authorization", b"Bearer vs_alice_secret-1")
    assert nobody.get("/v1/reviews", headers=[header, header]).status_code == 401


def test_an_unknown_key_is_refused(nobody: httpx.Client) -> None:
    answer = nobody.get("/v1/reviews", headers={"Authorization": "Bearer vs_alice_guess"})
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]


def test_the_scheme_is_read_in_any_case(nobody: httpx.Client) -> None:
    answer = nobody.get("/v1/reviews", headers={"Authorization": "bearer  vs_alice_secret-1"})
    assert answer.status_code == 200


def test_without_a_key_a_broken_body_is_not_even_read(nobody: httpx.Client) -> None:
    answer = nobody.post("/v1/uploads", content=b"{", headers={"Content-Type": "application/json"})
    assert answer.status_code == 401
