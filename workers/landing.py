"""Deletes messages that are done, ten to a request.

A delete that fails or never happens is harmless: the message comes again and finds its run settled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from pipeline.errors import VideosieveError
from pipeline.stores.queue import BATCH_MESSAGES, Message, Queue
from workers.logs import get_logger
from workers.metrics import Metrics

LINGER_S = 0.2
"""How long a message that is done waits for others to be deleted with; far less than any visibility."""


class Landing:
    """Collects the messages to delete; one thread sends what ten have come for, or what has waited long enough."""

    def __init__(self, metrics: Metrics, *, linger_s: float = LINGER_S) -> None:
        self._metrics = metrics
        self._linger_s = linger_s
        self._waiting: dict[Queue, list[Message]] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="delete", daemon=True)
        self._thread.start()

    def delete(self, message: Message, queue: Queue) -> None:
        with self._changed:
            self._waiting.setdefault(queue, []).append(message)
            self._changed.notify_all()

    def close(self) -> None:
        """Delete what is waiting, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                self._changed.wait_for(self._is_worth_a_request, self._linger_s)
                waiting, self._waiting = self._waiting, {}
                if not waiting:
                    return
            spent_s = time.thread_time()
            for queue, messages in waiting.items():
                _delete(queue, messages)
            self._metrics.stage_cpu.labels(stage="queue").inc(time.thread_time() - spent_s)

    def _is_worth_a_request(self) -> bool:
        return self._is_closed or any(len(messages) >= BATCH_MESSAGES for messages in self._waiting.values())


def _delete(queue: Queue, messages: Sequence[Message]) -> None:
    try:
        deleted = queue.delete_many(messages)
    except VideosieveError as error:
        get_logger().warning("delete_failed", reason=error.reason.value, detail=error.detail)
        return
    if len(deleted) < len(messages):
        get_logger().info("receipts_expired", messages=len(messages) - len(deleted))
