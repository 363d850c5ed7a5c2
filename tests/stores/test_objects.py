"""S3 as the pipeline uses it, against a real server that checks signatures."""

from __future__ import annotations

import socket
import time
from typing import Any
from uuid import uuid4

import httpx
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from pipeline.errors import (
    FatalError,
    PermanentError,
    Reason,
    SupersededError,
    TransientError,
    UserError,
    VideosieveError,
)
from pipeline.media import ObjectRef
from pipeline.stores import aws as aws_clients
from pipeline.stores.aws import Clients
from pipeline.stores.objects import ObjectStore
from pipeline.stores.signed import SignedObject
from pipeline.video.source import ByteRange, Source

HARD_KEYS = ["a b.mp4", "a+b.mp4", "100%.mp4", "a%20b.mp4", "ümläut 🎬.mp4", "x/y//z.mp4", "a&b=c?d#e.mp4", "'\"<>.mp4"]
CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def versioned_bucket(clients: Clients, bucket: str) -> str:
    clients.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


@pytest.mark.parametrize("key", HARD_KEYS)
def test_keys_of_any_kind_are_written_listed_resolved_and_read(objects: ObjectStore, bucket: str, key: str) -> None:
    objects.put(bucket, key, b"content", "video/mp4")
    (listed,) = objects.list(bucket)
    resolved = objects.resolve(ObjectRef(bucket, key))
    assert listed == resolved
    assert resolved.size_bytes == 7
    assert objects.get(bucket, key) == b"content"
    assert objects.source(resolved).read_ranges([ByteRange(0, 7)]) == [b"content"]
    assert httpx.get(objects.presigned_get(bucket, key, 60)).content == b"content"


def test_ranges_come_back_in_order_and_are_cut_at_the_end(objects: ObjectStore, bucket: str) -> None:
    objects.put(bucket, "k", CONTENT, "video/mp4")
    source: Source = objects.source(objects.resolve(ObjectRef(bucket, "k")))
    size = len(CONTENT)
    ranges = [
        ByteRange(200_000, 10),
        ByteRange(0, 5),
        ByteRange(3, 4),
        ByteRange(size - 3, 10),
        ByteRange(size + 5, 10),
        ByteRange(7, 0),
    ]
    assert source.name == f"s3://{bucket}/k"
    assert source.size_bytes == size
    assert source.read_ranges(ranges) == [CONTENT[r.offset_bytes : r.end_bytes] for r in ranges]
    assert source.read_ranges([]) == []


def test_neighbouring_ranges_are_read_by_one_request(
    objects: ObjectStore, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put(bucket, "k", CONTENT, "video/mp4")
    source = objects.source(objects.resolve(ObjectRef(bucket, "k")))
    asked: list[str] = []
    real = SignedObject.read

    def counting(signed: SignedObject, start: int, end: int) -> bytes | None:
        asked.append(f"{start}-{end}")
        return real(signed, start, end)

    monkeypatch.setattr(SignedObject, "read", counting)
    source.read_ranges([ByteRange(0, 100), ByteRange(200, 100), ByteRange(200_000, 100)])
    assert sorted(asked) == ["0-300", "200000-200100"]


def test_an_overwritten_object_is_superseded_not_mixed(objects: ObjectStore, bucket: str) -> None:
    objects.put(bucket, "k", b"old", "video/mp4")
    source = objects.source(objects.resolve(ObjectRef(bucket, "k")))
    objects.put(bucket, "k", b"new content", "video/mp4")
    with pytest.raises(SupersededError):
        source.read_ranges([ByteRange(0, 3)])


def test_a_deleted_object_is_superseded(clients: Clients, objects: ObjectStore, bucket: str) -> None:
    objects.put(bucket, "k", b"old", "video/mp4")
    source = objects.source(objects.resolve(ObjectRef(bucket, "k")))
    clients.s3.delete_object(Bucket=bucket, Key="k")
    with pytest.raises(SupersededError):
        source.read_ranges([ByteRange(0, 3)])


def test_an_older_version_can_still_be_read(objects: ObjectStore, versioned_bucket: str) -> None:
    objects.put(versioned_bucket, "k", b"old", "video/mp4")
    old = objects.resolve(ObjectRef(versioned_bucket, "k"))
    objects.put(versioned_bucket, "k", b"new content", "video/mp4")
    assert old.version_id is not None
    assert objects.source(old).read_ranges([ByteRange(0, 3)]) == [b"old"]
    assert objects.resolve(ObjectRef(versioned_bucket, "k", version_id=old.version_id)) == old


def test_listing_a_versioned_bucket_gives_the_latest_versions_only(
    clients: Clients, objects: ObjectStore, versioned_bucket: str
) -> None:
    for content in (b"1", b"22"):
        objects.put(versioned_bucket, "kept", content, "video/mp4")
        objects.put(versioned_bucket, "deleted", content, "video/mp4")
    clients.s3.delete_object(Bucket=versioned_bucket, Key="deleted")
    assert list(objects.list(versioned_bucket)) == [objects.resolve(ObjectRef(versioned_bucket, "kept"))]


def test_a_deleted_version_is_superseded(clients: Clients, objects: ObjectStore, versioned_bucket: str) -> None:
    objects.put(versioned_bucket, "k", b"old", "video/mp4")
    old = objects.resolve(ObjectRef(versioned_bucket, "k"))
    assert old.version_id is not None
    clients.s3.delete_object(Bucket=versioned_bucket, Key="k", VersionId=old.version_id)
    with pytest.raises(SupersededError):
        objects.source(old).read_ranges([ByteRange(0, 3)])


def test_listing_goes_on_beyond_a_thousand_and_deleting_too(objects: ObjectStore, bucket: str) -> None:
    for number in range(1005):
        objects.put(bucket, f"many/{number:04}", b"x", "text/plain")
    objects.put(bucket, "other/1", b"x", "text/plain")
    keys = [ref.key for ref in objects.list(bucket, "many/")]
    assert keys == [f"many/{number:04}" for number in range(1005)]
    assert objects.delete_prefix(bucket, "many/") == 1005
    assert [ref.key for ref in objects.list(bucket)] == ["other/1"]


def test_deleting_a_prefix_deletes_every_version(clients: Clients, objects: ObjectStore, versioned_bucket: str) -> None:
    for content in (b"1", b"22"):
        objects.put(versioned_bucket, "run/k", content, "video/mp4")
    clients.s3.delete_object(Bucket=versioned_bucket, Key="run/k")
    assert objects.delete_prefix(versioned_bucket, "run/") == 3
    left = clients.s3.list_object_versions(Bucket=versioned_bucket)
    assert not left.get("Versions")
    assert not left.get("DeleteMarkers")


def test_an_empty_prefix_is_not_deleted(objects: ObjectStore, bucket: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        objects.delete_prefix(bucket, "")


@pytest.fixture
def form(objects: ObjectStore, bucket: str) -> tuple[str, dict[str, str]]:
    return objects.presigned_post(bucket, "in/ü 1.mp4", max_bytes=100, expires_s=60, content_type="video/mp4")


def post(form: tuple[str, dict[str, str]], content: bytes, **changed: str) -> httpx.Response:
    url, fields = form
    return httpx.post(url, data={**fields, **changed}, files={"file": ("x.mp4", content)})


def test_a_presigned_post_takes_an_upload(objects: ObjectStore, bucket: str, form: tuple[str, dict[str, str]]) -> None:
    assert post(form, b"x" * 100).status_code == 204
    assert objects.get(bucket, "in/ü 1.mp4") == b"x" * 100


@pytest.mark.parametrize("size", [0, 101])
def test_a_presigned_post_refuses_other_sizes(form: tuple[str, dict[str, str]], size: int) -> None:
    assert post(form, b"x" * size).status_code == 400


def test_a_presigned_post_refuses_another_key(form: tuple[str, dict[str, str]]) -> None:
    assert post(form, b"x", key="in/other.mp4").status_code == 403


def test_a_presigned_post_refuses_another_type(form: tuple[str, dict[str, str]]) -> None:
    assert post(form, b"x", **{"Content-Type": "text/html"}).status_code == 403


def test_a_presigned_post_refuses_a_changed_policy(form: tuple[str, dict[str, str]]) -> None:
    assert post(form, b"x", policy=form[1]["policy"][:-8] + "AAAAAAAA").status_code in {400, 403}


def test_a_presigned_post_expires(objects: ObjectStore, bucket: str) -> None:
    form = objects.presigned_post(bucket, "k", max_bytes=100, expires_s=1)
    time.sleep(2.1)
    assert post(form, b"x").status_code == 403


def test_a_key_that_s3_would_change_is_refused(objects: ObjectStore, bucket: str) -> None:
    with pytest.raises(UserError):
        objects.presigned_post(bucket, "in/${filename}", max_bytes=100, expires_s=60)


def test_a_missing_object_is_not_found(objects: ObjectStore, bucket: str) -> None:
    for call in (lambda: objects.resolve(ObjectRef(bucket, "k")), lambda: objects.get(bucket, "k")):
        with pytest.raises(PermanentError) as caught:
            call()
        assert caught.value.reason is Reason.NOT_FOUND


def test_a_video_in_a_missing_bucket_is_not_found(objects: ObjectStore) -> None:
    missing = f"missing-{uuid4().hex}"
    with pytest.raises(PermanentError) as caught:
        objects.resolve(ObjectRef(missing, "k"))
    assert caught.value.reason is Reason.NOT_FOUND
    with pytest.raises(SupersededError):
        objects.source(ObjectRef(missing, "k", etag="e", size_bytes=5)).read_ranges([ByteRange(0, 1)])


def test_a_missing_bucket_of_ours_is_a_bad_setting(objects: ObjectStore) -> None:
    missing = f"missing-{uuid4().hex}"
    calls: list[Any] = [
        lambda: objects.get(missing, "k"),
        lambda: objects.put(missing, "k", b"", "text/plain"),
        lambda: list(objects.list(missing)),
    ]
    for call in calls:
        with pytest.raises(FatalError) as caught:
            call()
        assert caught.value.reason is Reason.BAD_SETTING


def test_a_bucket_name_that_cannot_exist_is_the_messages_fault(objects: ObjectStore) -> None:
    with pytest.raises(PermanentError) as caught:
        objects.resolve(ObjectRef("no bucket!", "k"))
    assert caught.value.reason is Reason.UNKNOWN_MESSAGE


def test_an_unreachable_endpoint_is_told_within_seconds() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        connected = aws_clients.connect(endpoint_url=url, access_key_id="a", secret_access_key="b")
        store = ObjectStore(connected.s3)
        before = time.monotonic()
        with pytest.raises(TransientError) as caught:
            store.resolve(ObjectRef("bucket", "k"))
        store.close()
        connected.close()
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert time.monotonic() - before < 15


def test_a_body_that_breaks_off_is_read_again(
    clients: Clients, objects: ObjectStore, bucket: str, monkeypatch: Any
) -> None:
    objects.put(bucket, "k", b"content", "video/mp4")
    source = objects.source(objects.resolve(ObjectRef(bucket, "k")))
    real = clients.s3.get_object
    failures = [ReadTimeoutError(endpoint_url="x"), ReadTimeoutError(endpoint_url="x")]

    def breaking(**request: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(**request)

    monkeypatch.setattr(clients.s3, "get_object", breaking)
    assert source.read_ranges([ByteRange(0, 7)]) == [b"content"]


@pytest.mark.parametrize(
    ("code", "status", "kind", "reason"),
    [
        ("SlowDown", 503, TransientError, Reason.THROTTLED),
        ("", 429, TransientError, Reason.THROTTLED),
        ("ServiceUnavailable", 503, TransientError, Reason.STORE_UNAVAILABLE),
        ("InternalError", 500, TransientError, Reason.STORE_UNAVAILABLE),
        ("AccessDenied", 403, TransientError, Reason.FORBIDDEN),
        ("403", 403, TransientError, Reason.FORBIDDEN),  # a HEAD has no body to say more
        ("ExpiredToken", 400, TransientError, Reason.FORBIDDEN),
        ("InvalidObjectState", 403, PermanentError, Reason.NOT_FOUND),
        ("NoSuchBucket", 404, FatalError, Reason.BAD_SETTING),
        ("PermanentRedirect", 301, FatalError, Reason.BAD_SETTING),
        ("SomethingNew", 400, TransientError, Reason.STORE_UNAVAILABLE),
    ],
)
def test_every_answer_of_s3_has_its_error(code: str, status: int, kind: type[VideosieveError], reason: Reason) -> None:
    headers = {"retry-after": "7"}
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    error = aws_clients.translate(ClientError(response, "GetObject"), Reason.STORE_UNAVAILABLE, "s3://b/k")
    assert type(error) is kind
    assert error.reason is reason
    if reason is Reason.THROTTLED:
        assert isinstance(error, TransientError)
        assert error.retry_after_s == 7
