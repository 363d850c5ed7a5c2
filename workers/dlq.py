"""The dead-letter queue: what lies there and why, sending it again by its cause, throwing it away.

Works with receive, send and delete alone, as not every SQS has a move task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from pipeline.errors import UserError
from pipeline.stores.ledger import Ledger
from pipeline.stores.queue import Message, Queue, Queues

HOLD_S = 120
"""How long a message stays hidden while it is looked at; everything is put back earlier than that."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that was set aside. `source` is the queue it came from, empty where SQS itself moved it."""

    message: Message

    @property
    def id(self) -> str:
        return self.message.message_id

    @property
    def reason(self) -> str:
        """Why; `received_too_often` where SQS moved the message and nobody said why."""
        return self.message.attributes.get("reason", "received_too_often")

    @property
    def detail(self) -> str:
        return self.message.attributes.get("detail", "")

    @property
    def source(self) -> str:
        return self.message.attributes.get("source", "")

    @property
    def run_id(self) -> UUID | None:
        text = self.message.attributes.get("run_id")
        return UUID(text) if text else None

    @property
    def video(self) -> str:
        """The object's address where the message is one of ours, else empty."""
        try:
            body = json.loads(self.message.body)
            return f"s3://{body['bucket']}/{body['key']}"
        except (ValueError, KeyError, TypeError):
            return ""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant: by cause, by id, by what is in the video's address. Nothing given means all."""

    reason: str | None = None
    ids: tuple[str, ...] = ()
    contains: str | None = None

    def matches(self, letter: DeadLetter) -> bool:
        return (
            (self.reason is None or letter.reason == self.reason)
            and (not self.ids or letter.id in self.ids)
            and (self.contains is None or self.contains in letter.video)
        )


@contextmanager
def held(queue: Queue, wanted: Filter, *, limit: int | None = None) -> Iterator[list[DeadLetter]]:
    """The matching dead letters, oldest first, hidden from others for the length of the `with` block.

    What was not deleted in the block is put back.
    """
    seen: dict[str, DeadLetter] = {}
    try:
        while messages := queue.receive(wait_s=1, visibility_s=HOLD_S):
            new = [message for message in messages if message.message_id not in seen]
            seen |= {message.message_id: DeadLetter(message) for message in new}
            if not new:
                break
        matching = sorted(filter(wanted.matches, seen.values()), key=lambda letter: letter.message.sent_at)
        yield matching[:limit]
    finally:
        for letter in seen.values():
            queue.hide(letter.message, 0)  # of no effect on those that were deleted


def redrive(queues: Queues, ledger: Ledger, wanted: Filter, *, who: str, progress: Callable[[DeadLetter], None]) -> int:
    """Send the matching messages to the lane that they came from, their runs given a fresh start; how many.

    A run starts with screening, so that a message of one from the escalation lane goes to the uploads.
    """
    lanes = {queue.name: queue for queue in queues.lanes.values()}
    with held(queues.dead_letter, wanted) as letters:
        for letter in letters:
            if letter.run_id is not None:
                _requeue(ledger, letter.run_id, who)
            lane = lanes.get(letter.source, queues.uploads)
            if lane is queues.escalation and letter.run_id is not None:
                lane = queues.uploads
            lane.send(letter.message.body, group=letter.message.group)
            queues.dead_letter.delete(letter.message)
            progress(letter)
    return len(letters)


def discard(
    queues: Queues, ledger: Ledger, wanted: Filter, *, who: str, why: str, progress: Callable[[DeadLetter], None]
) -> int:
    """Delete the matching messages, with a line in the audit for each; how many."""
    with held(queues.dead_letter, wanted) as letters:
        for letter in letters:
            detail = {"reason": letter.reason, "why": why, "body": letter.message.body[:1000]}
            ledger.audit(who, "dlq_discard", f"message:{letter.id}", detail)
            queues.dead_letter.delete(letter.message)
            progress(letter)
    return len(letters)


def _requeue(ledger: Ledger, run_id: UUID, who: str) -> None:
    with suppress(UserError):  # it is not failed any more: somebody was quicker, and the message finds it settled
        ledger.requeue(run_id, who=who)
