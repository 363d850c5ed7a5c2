"""Clients of S3 and SQS, their errors in our words, and the wiring of a local stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore import exceptions as boto
from botocore.config import Config

from pipeline.errors import FatalError, PermanentError, Reason, TransientError, UserError, VideosieveError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 30  # longer than the longest poll of a queue, 20 s
MAX_ATTEMPTS = 3
CONNECTIONS = 32

_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "BandwidthLimitExceeded",
    "KmsThrottled",
    "KMS.ThrottlingException",
    "OverLimit",
}
_OUR_SETTINGS = {
    "NoSuchBucket",
    "InvalidBucketName",
    "AuthorizationHeaderMalformed",
    "PermanentRedirect",
    "IllegalLocationConstraintException",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "InvalidAddress",
}


@dataclass(frozen=True, slots=True)
class Clients:
    """One client for each service; both are safe to share between threads."""

    s3: S3Client
    sqs: SQSClient

    def close(self) -> None:
        self.s3.close()
        self.sqs.close()


def connect(
    *,
    endpoint_url: str | None = None,
    region: str = "us-east-1",
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
) -> Clients:
    """Build the clients; nothing is connected yet. Without a key the usual AWS chain of credentials is used.

    An `endpoint_url` names another implementation than AWS's: buckets are then addressed by path, and checksums
    are only sent where the protocol asks for them, as not every implementation knows them.
    """
    foreign = endpoint_url is not None
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "adaptive", "total_max_attempts": MAX_ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        user_agent_extra="videosieve",
        proxies={} if _is_loopback(endpoint_url) else None,
        request_checksum_calculation="when_required" if foreign else None,
        response_checksum_validation="when_required" if foreign else None,
    )
    addressing: Any = {"addressing_style": "path" if foreign else "auto"}
    try:
        session = boto3.Session(
            aws_access_key_id=access_key_id, aws_secret_access_key=secret_access_key, region_name=region
        )
        s3_config = config.merge(Config(signature_version="s3v4", s3=addressing))
        return Clients(
            session.client("s3", endpoint_url=endpoint_url, config=s3_config),
            session.client("sqs", endpoint_url=endpoint_url, config=config),
        )
    except (boto.BotoCoreError, ValueError) as error:
        raise UserError(Reason.BAD_SETTING, f"the AWS settings cannot be used: {error}") from error


def _is_loopback(endpoint_url: str | None) -> bool:
    """A proxy from the environment is of no use for a server on this machine."""
    host = urlsplit(endpoint_url or "").hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


@contextmanager
def translated(unavailable: Reason, what: str) -> Iterator[None]:
    """Turn what botocore raises about `what` into the errors of `pipeline.errors`.

    `unavailable` is the reason to give when the service fails: STORE_UNAVAILABLE or QUEUE_UNAVAILABLE.
    """
    try:
        yield
    except boto.ClientError as error:
        raise translate(error, unavailable, what) from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise FatalError(Reason.BAD_SETTING, f"no AWS credentials: {error}") from error
    except boto.ParamValidationError as error:
        # Names of buckets and keys come in with messages: one that cannot exist is the message's fault.
        raise PermanentError(Reason.UNKNOWN_MESSAGE, f"{what}: {str(error).splitlines()[-1]}") from error
    except boto.BotoCoreError as error:
        raise TransientError(unavailable, f"{what}: {error}") from error


def translate(error: boto.ClientError, unavailable: Reason, what: str) -> VideosieveError:
    """What an error response means where it has no special meaning for the call that got it."""
    code, status = code_of(error), status_of(error)
    detail = f"{what}: {code}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": ")
    if code in _OUR_SETTINGS:
        return FatalError(Reason.BAD_SETTING, f"{detail}; check its name, region and endpoint")
    if code in _THROTTLED or status == 429:
        return TransientError(Reason.THROTTLED, detail, retry_after_s=_retry_after_s(error))
    if code == "InvalidObjectState":
        return PermanentError(Reason.NOT_FOUND, f"{detail}; it is archived, restore it first")
    if status in {401, 403} or code in {"AccessDenied", "ExpiredToken", "InvalidClientTokenId"}:
        return TransientError(Reason.FORBIDDEN, detail)
    return TransientError(unavailable, detail, retry_after_s=_retry_after_s(error))


def code_of(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _retry_after_s(error: boto.ClientError) -> float | None:
    value = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(value) if value.isdigit() else None


@dataclass(frozen=True, slots=True)
class Wiring:
    """The names of a stack's buckets and queues."""

    originals: str
    artifacts: str
    uploads: str
    backfill: str
    escalation: str
    dead_letter: str
    visibility_s: int = 120
    max_receive_count: int = 1000
    """How often SQS itself lets a message be received: a backstop, far above what the workers allow."""


def wire(clients: Clients, wiring: Wiring, *, region: str = "us-east-1") -> None:
    """Create the buckets and queues of a local stack and send the originals' events to the uploads queue.

    Idempotent. Production stacks are made by `infra/`; this is for `videosieve up` and tests.
    """
    from pipeline.stores.objects import ObjectStore  # noqa: PLC0415 - it imports this module

    store = ObjectStore(clients.s3)
    store.ensure_bucket(wiring.originals, region=region)
    store.ensure_bucket(wiring.artifacts, region=region)
    dead_letter_arn = _ensure_queue(clients.sqs, wiring.dead_letter, {})
    redrive = json.dumps({"deadLetterTargetArn": dead_letter_arn, "maxReceiveCount": wiring.max_receive_count})
    lane = {"VisibilityTimeout": str(wiring.visibility_s), "RedrivePolicy": redrive}
    uploads_policy = json.dumps(_from_bucket(wiring.originals, wiring.uploads, region))
    uploads_arn = _ensure_queue(clients.sqs, wiring.uploads, lane | {"Policy": uploads_policy})
    _ensure_queue(clients.sqs, wiring.backfill, lane)
    _ensure_queue(clients.sqs, wiring.escalation, lane)
    _ensure_notification(clients.s3, wiring.originals, uploads_arn)


def _ensure_queue(sqs: SQSClient, name: str, attributes: dict[str, str]) -> str:
    """Create or adjust a queue; returns its ARN."""
    wanted: Any = {"MessageRetentionPeriod": str(14 * 24 * 3600), **attributes}
    with translated(Reason.QUEUE_UNAVAILABLE, f"queue {name}"):
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        found: Any = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        if any(found.get(key) != value for key, value in wanted.items()):
            sqs.set_queue_attributes(QueueUrl=url, Attributes=wanted)
    return str(found["QueueArn"])


def _from_bucket(bucket: str, queue: str, region: str) -> dict[str, Any]:
    """A queue policy by which S3 may send the events of one bucket."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "OriginalsEvents",
                "Effect": "Allow",
                "Principal": {"Service": "s3.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": f"arn:aws:sqs:{region}:*:{queue}",
                "Condition": {"ArnEquals": {"aws:SourceArn": f"arn:aws:s3:::{bucket}"}},
            }
        ],
    }


def _ensure_notification(s3: S3Client, bucket: str, queue_arn: str) -> None:
    """Ask S3 for events, unless it sends them already: each request makes S3 send a test event."""
    ours: Any = {"Id": "videosieve-uploads", "QueueArn": queue_arn, "Events": ["s3:ObjectCreated:*"]}
    with translated(Reason.STORE_UNAVAILABLE, f"bucket {bucket}"):
        found: Any = s3.get_bucket_notification_configuration(Bucket=bucket)
        found.pop("ResponseMetadata", None)
        queues = found.get("QueueConfigurations", [])
        if any(all(queue.get(key) == value for key, value in ours.items()) for queue in queues):
            return
        others = [queue for queue in queues if queue.get("Id") != ours["Id"]]
        found["QueueConfigurations"] = [*others, ours]
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=found)
