"""Reads by a URL signed once: what they answer, and that whatever is odd goes by the client instead."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from botocore import exceptions as boto

from pipeline.errors import SupersededError, TransientError
from pipeline.media import ObjectRef
from pipeline.stores import signed as signed_module
from pipeline.stores.aws import Clients, connect
from pipeline.stores.objects import ObjectStore, S3Source
from pipeline.stores.signed import SignedObject, SignedReads
from pipeline.video.source import ByteRange

CONTENT = bytes(range(256)) * 100


@pytest.fixture
def put(objects: ObjectStore, bucket: str) -> ObjectRef:
    key = f"ä/{uuid4().hex} +%?&#.mp4"
    objects.put(bucket, key, CONTENT, "video/mp4")
    return objects.resolve(ObjectRef(bucket, key))


def signed_object(clients: Clients, ref: ObjectRef) -> SignedObject:
    return SignedReads(clients.s3).object(ref)


def test_a_signed_read_gives_the_bytes_asked_for(clients: Clients, put: ObjectRef) -> None:
    assert signed_object(clients, put).read(1000, 3000) == CONTENT[1000:3000]


def test_reads_go_by_one_url_and_not_by_the_client(
    clients: Clients, objects: ObjectStore, put: ObjectRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = objects.source(put)

    def never(**_: Any) -> Any:
        raise AssertionError("the client was asked")

    monkeypatch.setattr(clients.s3, "get_object", never)
    assert source.read_ranges([ByteRange(0, 10), ByteRange(20_000, 10)]) == [CONTENT[:10], CONTENT[20_000:20_010]]
    assert source.cpu_s > 0


def test_another_version_an_absent_object_and_the_end_of_the_file_give_nothing(
    clients: Clients, objects: ObjectStore, put: ObjectRef
) -> None:
    signed = signed_object(clients, put)
    assert signed.read(len(CONTENT) - 5, len(CONTENT) + 5) is None
    objects.put(put.bucket, put.key, CONTENT, "video/mp4")
    assert signed.read(0, 10) == CONTENT[:10]  # the same bytes, so the same ETag
    objects.put(put.bucket, put.key, CONTENT + b"more", "video/mp4")
    assert signed.read(0, 10) is None
    objects.delete_prefix(put.bucket, put.key)
    assert signed.read(0, 10) is None
    with pytest.raises(SupersededError):
        objects.source(put).read_ranges([ByteRange(0, 10)])


def test_a_url_that_is_refused_is_no_error_as_the_client_still_knows_how(
    clients: Clients, objects: ObjectStore, put: ObjectRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = connect(endpoint_url=clients.s3.meta.endpoint_url, access_key_id="test", secret_access_key="wrong")
    signed = signed_object(stranger, put)
    assert signed.read(0, 10) is None
    source = objects.source(put)
    monkeypatch.setattr(source, "_signed", signed)
    assert source.read_ranges([ByteRange(0, 10)]) == [CONTENT[:10]]


def test_a_url_is_signed_anew_before_it_ends(clients: Clients, put: ObjectRef, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = signed_object(clients, put)
    assert signed.read(0, 1) == CONTENT[:1]
    first = signed._url
    signed.read(0, 1)
    assert signed._url is first
    monkeypatch.setattr(signed_module, "EXPIRES_S", -2)
    signed._fresh_url()
    assert signed._url is not first


def test_a_connection_that_fails_says_nothing_of_the_url(put: ObjectRef) -> None:
    nowhere = connect(endpoint_url="http://127.0.0.1:1", access_key_id="test", secret_access_key="test")
    store = ObjectStore(nowhere.s3)
    assert SignedReads(nowhere.s3).object(put).read(0, 10) is None
    with pytest.raises(TransientError) as raised:
        store.source(put).read_ranges([ByteRange(0, 10)])
    assert "Signature" not in str(raised.value)
    store.close()


def test_credentials_that_cannot_sign_leave_it_to_the_client(put: ObjectRef) -> None:
    class Unable:
        def generate_presigned_url(self, *_: object, **__: object) -> str:
            raise boto.NoCredentialsError

        class meta:  # noqa: N801 - as boto3 names it
            class config:  # noqa: N801 - likewise
                connect_timeout = read_timeout = max_pool_connections = 1
                proxies = None

    unable: Any = Unable()
    assert SignedReads(unable).object(put).read(0, 10) is None


def test_a_source_without_signed_reads_goes_by_the_client(
    clients: Clients, objects: ObjectStore, put: ObjectRef
) -> None:
    source = S3Source(clients.s3, put, objects._threads)
    assert source.read_ranges([ByteRange(0, 10)]) == [CONTENT[:10]]
