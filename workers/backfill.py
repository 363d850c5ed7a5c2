"""Backfill: everything under a prefix, or in a manifest, into the backfill lane; what is decided is skipped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pipeline.cascade.policy import Policy
from pipeline.errors import PermanentError, Reason, UserError
from pipeline.media import ObjectRef
from pipeline.runs import Lane
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from workers.bootstrap import Services
from workers.enqueue import enqueue_new

BATCH = 100
"""Objects a step: one statement to the ledger, ten messages batches to SQS."""


@dataclass(slots=True)
class BackfillCounts:
    """What a backfill did so far. `missing` are manifest lines whose object is not there."""

    seen: int = 0
    enqueued: int = 0
    missing: int = 0

    @property
    def skipped(self) -> int:
        """Decided under this policy already, or on the way."""
        return self.seen - self.enqueued - self.missing


def backfill(
    services: Services,
    policy: Policy,
    refs: Iterable[ObjectRef],
    *,
    rate_per_s: float | None = None,
    progress: Callable[[BackfillCounts], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> BackfillCounts:
    """Enqueue each of `refs` that has no run under `policy`, at most `rate_per_s` a second.

    Safe to interrupt and to run again: nothing that was decided or is in flight is enqueued.
    """
    services.ledger.remember_policy(policy.name, policy.decision_hash, policy.document())
    counts = BackfillCounts()
    waiting = iter(refs)
    batch = BATCH if rate_per_s is None else max(1, min(BATCH, round(rate_per_s)))
    while refs_now := list(islice(waiting, batch)):
        found, missing = _resolved(services.objects, refs_now)
        enqueued = enqueue_new(services.ledger, services.queues.backfill, policy, Lane.BACKFILL, found)
        counts.seen += len(refs_now)
        counts.missing += missing
        counts.enqueued += enqueued
        progress(counts)
        if rate_per_s is not None and enqueued:
            sleep(enqueued / rate_per_s)
    return counts


def wait_until_settled(
    ledger: Ledger,
    decision_hash: str,
    progress: Callable[[int, int], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once no run of the backfill lane under `decision_hash` waits for a machine any more."""
    while True:
        counts = ledger.counts(lane=Lane.BACKFILL, decision_hash=decision_hash)
        waiting = sum(count for state, count in counts.items() if state.is_open)
        everything = sum(counts.values())
        progress(everything - waiting, everything)
        if waiting == 0:
            return
        sleep(0.5)


def _resolved(objects: ObjectStore, refs: Sequence[ObjectRef]) -> tuple[list[ObjectRef], int]:
    """Those of `refs` that are there, each once, and how many are not."""
    found: dict[tuple[str, str, str], ObjectRef] = {}
    missing = 0
    for ref in refs:
        try:
            resolved = ref if ref.is_resolved else objects.resolve(ref)
        except PermanentError:
            missing += 1
            continue
        found.setdefault((resolved.bucket, resolved.key, resolved.version), resolved)
    return list(found.values()), missing


def parse_s3_url(url: str) -> tuple[str, str]:
    """`s3://bucket/prefix` → (bucket, prefix). Raises UserError(BAD_INPUT)."""
    scheme, separator, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not separator or not bucket:
        raise UserError(Reason.BAD_INPUT, f"'{url}' is not an S3 address; write s3://BUCKET/PREFIX")
    return bucket, key


def read_manifest(lines: Iterable[str], *, origin: str) -> Iterator[ObjectRef]:
    """Objects named by a manifest, one a line: `s3://bucket/key`, or JSON `{"bucket", "key", "version_id"?}`.

    Empty lines and lines that start with `#` are skipped. Raises UserError(BAD_INPUT) that names the line.
    """
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            yield _json_line(line) if line.startswith("{") else _url_line(line)
        except (ValueError, KeyError, TypeError, RecursionError, UserError):
            raise UserError(
                Reason.BAD_INPUT,
                f'{origin}:{number}: neither s3://BUCKET/KEY nor {{"bucket": …, "key": …}}: {line[:80]}',
            ) from None


def _url_line(line: str) -> ObjectRef:
    bucket, key = parse_s3_url(line)
    if not key:
        raise ValueError(line)
    return ObjectRef(bucket, key)


def _json_line(line: str) -> ObjectRef:
    entry = json.loads(line)
    bucket, key, version_id = entry["bucket"], entry["key"], entry.get("version_id")
    if not (isinstance(bucket, str) and bucket and isinstance(key, str) and key):
        raise ValueError(line)
    if not isinstance(version_id, str | None):
        raise TypeError(line)
    if version_id == "null":  # S3's name for "written before versioning": such objects go by ETag
        version_id = None
    return ObjectRef(bucket, key, version_id=version_id or None)
