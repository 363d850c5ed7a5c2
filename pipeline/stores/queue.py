"""SQS queues: receive, hide, delete, send, and setting a message aside with its reason."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from botocore import exceptions as boto

from pipeline.errors import FatalError, PermanentError, Reason, TransientError, VideosieveError
from pipeline.runs import Lane
from pipeline.stores.aws import code_of, translated

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

MAX_HIDE_S = 11 * 3600
"""SQS ends a message's invisibility 12 hours after it was received; an hour is left for the work before."""
MAX_DELAY_S = 900
BATCH_MESSAGES = 10
BATCH_BYTES = 256 * 1024
SEND_ATTEMPTS = 5
_NO_SUCH_QUEUE = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
_STALE_RECEIPT = {
    "ReceiptHandleIsInvalid",
    "InvalidReceiptHandle",
    "MessageNotInflight",
    "AWS.SimpleQueueService.MessageNotInflight",
    "InvalidParameterValue",
}
_NO_GROUPS = {"InvalidParameterValue", "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation"}
_NOT_IN_MESSAGES = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What SQS refuses: everything that XML cannot hold."""


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of a message; `receipt` is good for this delivery alone.

    `group` is the sender's message group: whose message it is, for SQS's fair queues; S3's own events have none.
    """

    message_id: str
    body: str
    receipt: str
    receive_count: int
    sent_at: datetime
    attributes: dict[str, str] = field(default_factory=dict)
    group: str | None = None


class Depth(TypedDict):
    """How many messages, approximately: to be received, received and not deleted, not to be received yet."""

    visible: int
    in_flight: int
    delayed: int


class Queue:
    """One queue by name. Its URL is asked for once, at the first use; safe to share between threads.

    Raises TransientError (QUEUE_UNAVAILABLE, THROTTLED, FORBIDDEN), and FatalError(BAD_SETTING) where there is
    no such queue.
    """

    def __init__(self, client: SQSClient, name: str) -> None:
        self.name = name
        self._client = client
        self._known_url: str | None = None
        self._takes_groups = True

    def receive(self, *, max_messages: int = 10, wait_s: int, visibility_s: int) -> list[Message]:
        """Up to 10 messages, after waiting up to `wait_s` (at most 20) for the first."""
        with translated(Reason.QUEUE_UNAVAILABLE, f"queue {self.name}"):
            response = self._client.receive_message(
                QueueUrl=self._url(),
                MaxNumberOfMessages=min(max_messages, BATCH_MESSAGES),
                WaitTimeSeconds=wait_s,
                VisibilityTimeout=visibility_s,
                MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"],
                MessageAttributeNames=["All"],
            )
        return [_message(found) for found in response.get("Messages", [])]

    def delete(self, message: Message) -> bool:
        """Delete a message; False where its receipt is no longer good, so that it may come again."""
        return self._with_receipt(lambda url: self._client.delete_message(QueueUrl=url, ReceiptHandle=message.receipt))

    def hide(self, message: Message, seconds: float) -> bool:
        """Let the message come back in `seconds` from now, 0 for at once; False where the receipt is not good."""
        hidden_s = max(0, min(MAX_HIDE_S, round(seconds)))
        return self._with_receipt(
            lambda url: self._client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=message.receipt, VisibilityTimeout=hidden_s
            )
        )

    def delete_many(self, messages: Sequence[Message]) -> list[Message]:
        """Delete messages in batches; those that were deleted. The others' receipts are no longer good, or SQS failed
        them: they may come again. An error is raised after all batches were tried."""
        return self._in_batches(
            messages,
            lambda url, batch: self._client.delete_message_batch(
                QueueUrl=url, Entries=[{"Id": str(n), "ReceiptHandle": m.receipt} for n, m in enumerate(batch)]
            ),
        )

    def hide_many(self, messages: Sequence[Message], seconds: float) -> list[Message]:
        """Let all come back in `seconds` from now, in batches; those that will. As `delete_many`."""
        hidden_s = max(0, min(MAX_HIDE_S, round(seconds)))
        return self._in_batches(
            messages,
            lambda url, batch: self._client.change_message_visibility_batch(
                QueueUrl=url,
                Entries=[
                    {"Id": str(n), "ReceiptHandle": m.receipt, "VisibilityTimeout": hidden_s}
                    for n, m in enumerate(batch)
                ],
            ),
        )

    def send(
        self,
        body: str,
        attributes: Mapping[str, str] | None = None,
        *,
        delay_s: int = 0,
        group: str | None = None,
    ) -> None:
        """`group` is whose message it is: SQS's fair queues then let no group's backlog hold up the others."""
        request: Any = {
            "MessageBody": body,
            "DelaySeconds": delay_s,
            "MessageAttributes": _attributes(attributes or {}),
        }
        whose: Any = {"MessageGroupId": group}
        with translated(Reason.QUEUE_UNAVAILABLE, f"queue {self.name}"):
            self._grouped(
                group is not None,
                lambda with_group: self._client.send_message(
                    QueueUrl=self._url(), **request, **(whose if with_group else {})
                ),
            )

    def send_many(self, bodies: Sequence[str], groups: Sequence[str] = ()) -> None:
        """Send all, in batches; `groups`, where given, says whose each one is. On an error some may have been sent, so
        consumers must bear repetitions."""
        start = 0
        for batch in _batches(bodies):
            self._send_batch(batch, groups[start : start + len(batch)])
            start += len(batch)

    def renew(self, message: Message, *, delay_s: float = 0) -> bool:
        """Send a message again and delete it: the copy's receives count from none, so that however often it has to
        wait, it does not reach the queue's `maxReceiveCount`. What `delete` returned."""
        self.send(
            message.body, message.attributes, delay_s=max(0, min(MAX_DELAY_S, round(delay_s))), group=message.group
        )
        return self.delete(message)

    def dead_letter(self, message: Message, dead_letters: Queue, *, reason: Reason, detail: str) -> bool:
        """Set a message aside with why, then delete it here; what `delete` returned."""
        why = {"reason": reason.value, "detail": detail, "source": self.name}
        dead_letters.send(message.body, message.attributes | why, group=message.group)
        return self.delete(message)

    def _post(self, bodies: Mapping[int, str], groups: Sequence[str], with_groups: bool) -> Any:
        entries: Any = [
            {"Id": str(number), "MessageBody": body, **({"MessageGroupId": groups[number]} if with_groups else {})}
            for number, body in bodies.items()
        ]
        return self._client.send_message_batch(QueueUrl=self._url(), Entries=entries)

    def depth(self) -> Depth:
        with translated(Reason.QUEUE_UNAVAILABLE, f"queue {self.name}"):
            found: Mapping[Any, str] = self._client.get_queue_attributes(
                QueueUrl=self._url(),
                AttributeNames=[
                    "ApproximateNumberOfMessages",
                    "ApproximateNumberOfMessagesNotVisible",
                    "ApproximateNumberOfMessagesDelayed",
                ],
            )["Attributes"]
        return Depth(
            visible=int(found["ApproximateNumberOfMessages"]),
            in_flight=int(found["ApproximateNumberOfMessagesNotVisible"]),
            delayed=int(found["ApproximateNumberOfMessagesDelayed"]),
        )

    def _url(self) -> str:
        if self._known_url is None:
            try:
                self._known_url = self._client.get_queue_url(QueueName=self.name)["QueueUrl"]
            except boto.ClientError as error:
                if code_of(error) in _NO_SUCH_QUEUE:
                    raise FatalError(Reason.BAD_SETTING, f"there is no queue {self.name!r}") from error
                raise
        return self._known_url

    def _with_receipt(self, call: Any) -> bool:
        with translated(Reason.QUEUE_UNAVAILABLE, f"queue {self.name}"):
            try:
                call(self._url())
            except boto.ClientError as error:
                if code_of(error) not in _STALE_RECEIPT:
                    raise
                return False
        return True

    def _in_batches(self, messages: Sequence[Message], call: Callable[[str, Sequence[Message]], Any]) -> list[Message]:
        done: list[Message] = []
        failure: VideosieveError | None = None
        for start in range(0, len(messages), BATCH_MESSAGES):
            batch = messages[start : start + BATCH_MESSAGES]
            try:
                with translated(Reason.QUEUE_UNAVAILABLE, f"queue {self.name}"):
                    done += [batch[int(entry["Id"])] for entry in call(self._url(), batch).get("Successful", [])]
            except VideosieveError as error:
                failure = error
        if failure is not None:
            raise failure
        return done

    def _grouped(self, has_groups: bool, send: Callable[[bool], Any]) -> Any:
        """Send with message groups, and without where this SQS knows them on FIFO queues only."""
        if not has_groups or not self._takes_groups:
            return send(False)
        try:
            answer = send(True)
            if not any(entry.get("Code") in _NO_GROUPS for entry in answer.get("Failed", [])):
                return answer
        except boto.ClientError as error:
            if code_of(error) not in _NO_GROUPS:
                raise
        answer = send(False)
        self._takes_groups = False  # only now: it was the group, as without it all is well
        return answer

    def _send_batch(self, bodies: Sequence[str], groups: Sequence[str]) -> None:
        """Send up to 10, sending those again that SQS did not take."""
        waiting = dict(enumerate(bodies))
        for attempt in range(SEND_ATTEMPTS):
            with translated(Reason.QUEUE_UNAVAILABLE, f"queue {self.name}"):
                response = self._grouped(bool(groups), partial(self._post, waiting, groups))
            failed = response.get("Failed", [])
            for entry in failed:
                if entry["SenderFault"]:
                    raise PermanentError(
                        Reason.UNKNOWN_MESSAGE, f"queue {self.name} refuses a message: {entry.get('Message')}"
                    )
            waiting = {int(entry["Id"]): waiting[int(entry["Id"])] for entry in failed}
            if not waiting:
                return
            time.sleep(0.1 * 2**attempt)
        raise TransientError(
            Reason.QUEUE_UNAVAILABLE, f"queue {self.name} did not take {len(waiting)} of {len(bodies)} messages"
        )


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of a fleet: its lanes, and where messages are set aside."""

    uploads: Queue
    backfill: Queue
    escalation: Queue
    dead_letter: Queue

    @property
    def lanes(self) -> dict[Lane, Queue]:
        return {Lane.UPLOADS: self.uploads, Lane.BACKFILL: self.backfill, Lane.ESCALATION: self.escalation}


def _message(found: Any) -> Message:
    system = found["Attributes"]
    return Message(
        message_id=found["MessageId"],
        body=found["Body"],
        receipt=found["ReceiptHandle"],
        receive_count=int(system["ApproximateReceiveCount"]),
        sent_at=datetime.fromtimestamp(int(system["SentTimestamp"]) / 1000, UTC),
        attributes={
            name: value["StringValue"]
            for name, value in found.get("MessageAttributes", {}).items()
            if "StringValue" in value
        },
        group=system.get("MessageGroupId"),
    )


def _attributes(values: Mapping[str, str]) -> Any:
    """Message attributes: strings without what SQS refuses, kept short and few, empty ones left out."""
    clean = {name: _NOT_IN_MESSAGES.sub("\N{REPLACEMENT CHARACTER}", text)[:1000] for name, text in values.items()}
    kept = [(name, text) for name, text in clean.items() if text][-10:]
    return {name: {"DataType": "String", "StringValue": text} for name, text in kept}


def _batches(bodies: Sequence[str]) -> Iterator[list[str]]:
    """Up to 10 messages and 256 KiB each; a larger message goes alone."""
    batch: list[str] = []
    batch_bytes = 0
    for body in bodies:
        body_bytes = len(body.encode(errors="replace"))
        if batch and (len(batch) == BATCH_MESSAGES or batch_bytes + body_bytes > BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(body)
        batch_bytes += body_bytes
    if batch:
        yield batch
