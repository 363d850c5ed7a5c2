"""Uploads, as clients do them: straight into the originals bucket, again until S3 has accepted them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from botocore.exceptions import BotoCoreError, ClientError

from tests.fleet.stand import WIRING, Stand


@dataclass(slots=True)
class Uploaded:
    """What was accepted, with when; `retries` counts refusals and failures that a client had to bear."""

    at_s: dict[str, float] = field(default_factory=dict)
    retries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


Item = tuple[str, Callable[[], bytes]]


def put(
    stand: Stand, items: Iterable[Item], *, threads: int = 4, per_s: float | None = None, into: Uploaded | None = None
) -> Uploaded:
    """Put every (key, bytes) with `threads` at once, at most `per_s` a second; returns once all are accepted.

    `into` is filled meanwhile, for those who look on.
    """
    done = Uploaded() if into is None else into
    start_s = time.monotonic()
    waiting = enumerate(items)
    taking = threading.Lock()

    def upload() -> None:
        while True:
            with taking:
                number, (key, data) = next(waiting, (0, ("", bytes)))
            if not key:
                return
            if per_s is not None:
                time.sleep(max(0.0, start_s + number / per_s - time.monotonic()))
            _until_accepted(stand, key, data(), done)

    with ThreadPoolExecutor(threads) as pool:
        for uploading in [pool.submit(upload) for _ in range(threads)]:
            uploading.result()
    return done


def _until_accepted(stand: Stand, key: str, data: bytes, done: Uploaded) -> None:
    deadline_s = time.monotonic() + 300
    while True:
        try:
            stand.clients.s3.put_object(Bucket=WIRING.originals, Key=key, Body=data, ContentType="video/mp4")
            break
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline_s:
                raise
            with done.lock:
                done.retries += 1
            time.sleep(0.3)
    with done.lock:
        done.at_s[key] = time.time()
