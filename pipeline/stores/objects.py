"""Objects in S3, pinned to their versions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from botocore import exceptions as boto

from pipeline.errors import FatalError, PermanentError, Reason, SupersededError, TransientError, UserError
from pipeline.media import ObjectRef
from pipeline.stores.aws import code_of, status_of, translated
from pipeline.stores.signed import SignedObject, SignedReads
from pipeline.video.source import ByteRange, coalesce

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

READ_THREADS = 4
READ_ATTEMPTS = 3
_GONE = {"NoSuchKey", "NoSuchVersion", "404", "405", "MethodNotAllowed", "NotFound"}


class ObjectStore:
    """S3 through one client; safe to share between threads.

    Raises TransientError (STORE_UNAVAILABLE, THROTTLED, FORBIDDEN), PermanentError(NOT_FOUND) for an object, and
    FatalError(BAD_SETTING) for a bucket of ours that does not exist; a video's bucket comes in with its message, so
    there it is NOT_FOUND like the object. `presigner` signs URLs where clients reach the
    store by another address than we do.
    """

    def __init__(self, client: S3Client, *, presigner: S3Client | None = None) -> None:
        self._client = client
        self._presigner = presigner or client
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="s3-read")
        self._reads = SignedReads(client)

    def close(self) -> None:
        self._threads.shutdown()
        self._reads.close()

    def resolve(self, ref: ObjectRef) -> ObjectRef:
        """The same object with its version id (in versioned buckets), ETag and size."""
        versioned: Any = {"VersionId": ref.version_id} if ref.version_id else {}
        with translated(Reason.STORE_UNAVAILABLE, ref.url):
            try:
                head = self._client.head_object(Bucket=ref.bucket, Key=ref.key, **versioned)
            except boto.ClientError as error:
                if code_of(error) not in _GONE:
                    raise
                raise PermanentError(Reason.NOT_FOUND, f"{ref.url} does not exist") from error
        version_id = head.get("VersionId")
        return ObjectRef(
            ref.bucket,
            ref.key,
            version_id=None if version_id == "null" else version_id,
            etag=head["ETag"].strip('"'),
            size_bytes=head["ContentLength"],
        )

    def source(self, ref: ObjectRef) -> S3Source:
        """The object's bytes, always of this version; `ref` must be resolved and know its size."""
        return S3Source(self._client, ref, self._threads, self._reads.object(ref))

    def put(self, bucket: str, key: str, content: bytes, content_type: str) -> None:
        with translated(Reason.STORE_UNAVAILABLE, f"s3://{bucket}/{key}"):
            self._client.put_object(Bucket=bucket, Key=key, Body=content, ContentType=content_type)

    def get(self, bucket: str, key: str) -> bytes:
        """A whole, small object."""
        url = f"s3://{bucket}/{key}"

        def read() -> bytes:
            try:
                return self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
            except boto.ClientError as error:
                if code_of(error) in _GONE:
                    raise PermanentError(Reason.NOT_FOUND, f"{url} does not exist") from error
                raise

        with translated(Reason.STORE_UNAVAILABLE, url):
            return _again(read)

    def list(self, bucket: str, prefix: str = "", *, modified_before: datetime | None = None) -> Iterator[ObjectRef]:
        """The current version of every object, in the order of their keys. Folders' marks are left out."""
        for found, version_id in self._walk(bucket, prefix, every_version=False):
            is_recent = modified_before is not None and found["LastModified"] >= modified_before
            if not is_recent and not found["Key"].endswith("/"):
                yield ObjectRef(
                    bucket,
                    found["Key"],
                    version_id=version_id,
                    etag=found["ETag"].strip('"'),
                    size_bytes=found["Size"],
                )

    def delete(self, refs: Sequence[ObjectRef]) -> int:
        """Delete these objects of one bucket, as listed, a thousand to a request; returns how many."""
        deleted = 0
        for start in range(0, len(refs), 1000):
            batch = [
                {"Key": ref.key, **({"VersionId": ref.version_id} if ref.version_id else {})}
                for ref in refs[start : start + 1000]
            ]
            deleted += self._delete(refs[start].bucket, batch)
        return deleted

    def delete_prefix(self, bucket: str, prefix: str) -> int:
        """Delete all objects under a prefix, with all their versions; returns how many."""
        if not prefix:
            raise ValueError("an empty prefix would empty the bucket")
        deleted = 0
        batch: list[Any] = []
        for found, version_id in self._walk(bucket, prefix, every_version=True):
            batch.append({"Key": found["Key"], **({"VersionId": version_id} if version_id else {})})
            if len(batch) == 1000:
                deleted += self._delete(bucket, batch)
                batch = []
        return deleted + self._delete(bucket, batch)

    def presigned_post(
        self,
        bucket: str,
        key: str,
        *,
        max_bytes: int,
        expires_s: int,
        content_type: str | None = None,
        min_bytes: int = 1,
    ) -> tuple[str, dict[str, str]]:
        """A URL and form fields by which anybody can upload so many bytes to exactly this key for a while."""
        if "${filename}" in key:
            raise UserError(Reason.BAD_INPUT, "S3 would replace ${filename} in the key")
        fields = {"Content-Type": content_type} if content_type else {}
        conditions: list[Any] = [["content-length-range", min_bytes, max_bytes], *({n: v} for n, v in fields.items())]
        with translated(Reason.STORE_UNAVAILABLE, f"s3://{bucket}/{key}"):
            signed = self._presigner.generate_presigned_post(
                bucket, key, Fields=fields, Conditions=conditions, ExpiresIn=expires_s
            )
        return signed["url"], signed["fields"]

    def presigned_get(self, bucket: str, key: str, expires_s: int) -> str:
        with translated(Reason.STORE_UNAVAILABLE, f"s3://{bucket}/{key}"):
            return self._presigner.generate_presigned_url(
                "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=expires_s
            )

    def check_bucket(self, name: str) -> None:
        """Raises FatalError(BAD_SETTING) where there is no such bucket. Needs the permission to list it."""
        with translated(Reason.STORE_UNAVAILABLE, f"bucket {name}"):
            try:
                self._client.head_bucket(Bucket=name)
            except boto.ClientError as error:
                if status_of(error) != 404:
                    raise
                raise FatalError(
                    Reason.BAD_SETTING, f"there is no bucket {name!r}; create it, or correct its name"
                ) from error

    def ensure_bucket(self, name: str, *, region: str = "us-east-1") -> None:
        where: Any = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        with translated(Reason.STORE_UNAVAILABLE, f"bucket {name}"):
            try:
                self._client.head_bucket(Bucket=name)
            except boto.ClientError as error:
                if status_of(error) != 404:
                    raise
                try:
                    self._client.create_bucket(Bucket=name, **where)
                except boto.ClientError as second:
                    if code_of(second) != "BucketAlreadyOwnedByYou":
                        raise

    def _walk(self, bucket: str, prefix: str, *, every_version: bool) -> Iterator[tuple[Any, str | None]]:
        """Listed objects with their version ids, None where the bucket keeps no versions."""
        with translated(Reason.STORE_UNAVAILABLE, f"bucket {bucket}"):
            versioned = "Status" in self._client.get_bucket_versioning(Bucket=bucket)
            client: Any = self._client
            paginator = client.get_paginator("list_object_versions" if versioned else "list_objects_v2")
            pages = iter(paginator.paginate(Bucket=bucket, Prefix=prefix))
        while True:
            # Translated page by page: what the consumer raises between the pages is not S3's.
            with translated(Reason.STORE_UNAVAILABLE, f"bucket {bucket}"):
                page = next(pages, None)
            if page is None:
                return
            for found in page.get("Contents", []):
                yield found, None
            for found in page.get("Versions", []):
                if every_version or found["IsLatest"]:
                    null = found["VersionId"] == "null"
                    yield found, None if null and not every_version else found["VersionId"]
            if every_version:
                for found in page.get("DeleteMarkers", []):
                    yield found, found["VersionId"]

    def _delete(self, bucket: str, objects: Sequence[Any]) -> int:
        if not objects:
            return 0
        with translated(Reason.STORE_UNAVAILABLE, f"bucket {bucket}"):
            response = self._client.delete_objects(Bucket=bucket, Delete={"Objects": [*objects], "Quiet": True})
        for error in response.get("Errors", []):
            reason = Reason.FORBIDDEN if error.get("Code") == "AccessDenied" else Reason.STORE_UNAVAILABLE
            raise TransientError(reason, f"s3://{bucket}/{error.get('Key')}: {error.get('Code')}")
        return len(objects)


class S3Source:
    """`pipeline.video.source.Source` for one version of an object. A version that is gone is SupersededError.

    `cpu_s` is the processor time that its reads have taken so far, in whichever threads.
    """

    def __init__(
        self, client: S3Client, ref: ObjectRef, threads: ThreadPoolExecutor, signed: SignedObject | None = None
    ) -> None:
        if ref.size_bytes is None or not ref.is_resolved:
            raise ValueError(f"{ref.url} is not resolved")
        self._client = client
        self._ref = ref
        self._size_bytes = ref.size_bytes
        self._threads = threads
        self._signed = signed
        self._spent = threading.Lock()
        self.cpu_s = 0.0
        self._pin: Any = {"VersionId": ref.version_id} if ref.version_id else {"IfMatch": f'"{ref.etag}"'}

    @property
    def name(self) -> str:
        return self._ref.url

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """The bytes of each range, in order, neighbours in one request; what lies past the end is left out."""
        inside = [self._clip(wanted) for wanted in ranges]
        blocks = coalesce([wanted for wanted in inside if wanted.length_bytes])
        contents = list(self._threads.map(self._read, blocks)) if len(blocks) > 1 else [*map(self._read, blocks)]
        return [_cut(wanted, blocks, contents) for wanted in inside]

    def _clip(self, wanted: ByteRange) -> ByteRange:
        start = min(wanted.offset_bytes, self._size_bytes)
        return ByteRange(start, max(0, min(wanted.end_bytes, self._size_bytes) - start))

    def _read(self, block: ByteRange) -> bytes:
        start_s = time.thread_time()
        try:
            content = self._signed.read(block.offset_bytes, block.end_bytes) if self._signed else None
            if content is not None:
                return content
            with translated(Reason.STORE_UNAVAILABLE, self.name):
                return _again(lambda: self._get(block))
        finally:
            with self._spent:
                self.cpu_s += time.thread_time() - start_s

    def _get(self, block: ByteRange) -> bytes:
        try:
            content = self._client.get_object(
                Bucket=self._ref.bucket,
                Key=self._ref.key,
                Range=f"bytes={block.offset_bytes}-{block.end_bytes - 1}",
                **self._pin,
            )["Body"].read()
        except boto.ClientError as error:
            if code_of(error) in _GONE or status_of(error) in {404, 405, 412, 416}:
                raise SupersededError(f"{self.name} was replaced or deleted") from error
            raise
        if len(content) != block.length_bytes:
            raise TransientError(
                Reason.STORE_UNAVAILABLE, f"{self.name}: {len(content)} bytes came for {block.length_bytes}"
            )
        return content


def _again(read: Callable[[], bytes]) -> bytes:
    """Read again when the connection breaks inside a body, which botocore does not do by itself."""
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return read()
        except (boto.IncompleteReadError, boto.ReadTimeoutError, boto.ResponseStreamingError):
            continue
    return read()


def _cut(wanted: ByteRange, blocks: Sequence[ByteRange], contents: Sequence[bytes]) -> bytes:
    for block, content in zip(blocks, contents, strict=True):
        if block.offset_bytes <= wanted.offset_bytes and wanted.end_bytes <= block.end_bytes:
            start = wanted.offset_bytes - block.offset_bytes
            return content[start : start + wanted.length_bytes]
    return b""
