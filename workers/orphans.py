"""Artifacts that belong to no result: what attempts wrote that lost their lease, died, or whose run is gone.

Artifacts lie at `runs/RUN/FENCE/…`. Only the last claim's fence can still become the result, and only while the run is
being processed; so whatever else is neither under the result's own fence nor named in its document is an orphan.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import UUID

from pipeline.errors import PermanentError
from pipeline.media import ObjectRef
from pipeline.runs import Standing
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from pipeline.verdict import RunState

CHUNK = 1000
_OF_AN_ATTEMPT = re.compile(r"runs/([0-9a-f-]{36})/(\d{1,18})/")
_BEING_WORKED_ON = {RunState.PROCESSING, RunState.ESCALATED}
_WAITING_FOR_A_RESULT = {RunState.ESCALATED, RunState.DEFERRED, RunState.IN_REVIEW}
"""States in which earlier artifacts may be wanted although no result names them."""


def orphans(
    ledger: Ledger, objects: ObjectStore, bucket: str, *, older_than_s: float
) -> Iterator[tuple[int, list[ObjectRef]]]:
    """Chunk by chunk: how many artifacts were looked at, and those of them that belong to no result.

    Only objects that are older than `older_than_s` are looked at, so that nothing under way is. What is not an
    attempt's is nobody's concern here, but for what probes of breakers left.
    """
    before = datetime.now(UTC) - timedelta(seconds=older_than_s)
    yield from _chunks(objects.list(bucket, "probes/", modified_before=before), all_are_orphans=True)
    for looked_at, found in _chunks(objects.list(bucket, "runs/", modified_before=before), all_are_orphans=False):
        yield looked_at, _of_no_result(ledger, objects, found)


def _chunks(listed: Iterator[ObjectRef], *, all_are_orphans: bool) -> Iterator[tuple[int, list[ObjectRef]]]:
    while chunk := list(islice(listed, CHUNK)):
        yield len(chunk), chunk if all_are_orphans or any(_attempt_of(ref) for ref in chunk) else []


def _of_no_result(ledger: Ledger, objects: ObjectStore, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
    attempts: dict[tuple[UUID, int], list[ObjectRef]] = defaultdict(list)
    for ref in refs:
        if attempt := _attempt_of(ref):
            attempts[attempt].append(ref)
    standings = ledger.standings({run_id for run_id, _ in attempts})
    return [
        ref
        for (run_id, fence), found in attempts.items()
        if _is_orphan(objects, found[0].bucket, run_id, fence, standings.get(run_id))
        for ref in found
    ]


def _attempt_of(ref: ObjectRef) -> tuple[UUID, int] | None:
    matched = _OF_AN_ATTEMPT.match(ref.key)
    try:
        return (UUID(matched[1]), int(matched[2])) if matched else None
    except ValueError:
        return None


def _is_orphan(objects: ObjectStore, bucket: str, run_id: UUID, fence: int, standing: Standing | None) -> bool:
    if standing is None:
        return True
    if fence > standing.fence or (fence == standing.fence and standing.state in _BEING_WORKED_ON):
        return False  # being written, or by a claim that the ledger made after we looked
    if standing.result_key is None:
        return standing.state not in _WAITING_FOR_A_RESULT
    prefix = f"runs/{run_id}/{fence}/"
    return not standing.result_key.startswith(prefix) and not _names(objects, bucket, standing.result_key, prefix)


def _names(objects: ObjectStore, bucket: str, result_key: str, prefix: str) -> bool:
    """Whether the result's document names anything under `prefix`: a later stage keeps an earlier one's pictures."""
    try:
        return prefix.encode() in objects.get(bucket, result_key)
    except PermanentError:
        return True  # the result itself is gone: nothing is deleted on top of that
