"""What attempts leave behind that never become the result."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

from pipeline.errors import Reason
from pipeline.media import ObjectRef
from pipeline.runs import Claimed, ClaimResult, Commit, Lane
from pipeline.verdict import RunState
from tests.road.conftest import RED, Fleet, colour_clip
from tests.waiting import wait_for
from workers.reconcile import ReconcileCounts, reconcile

AGE_S = 1.0


def _claim(fleet: Fleet, key: str, lease_s: float = 60) -> Claimed:
    """Claim the run of `key`, as soon as whoever holds it has lost it."""
    claims: list[ClaimResult] = []

    def claim() -> bool:
        ref = ObjectRef(fleet.stack.originals, key, etag="e", size_bytes=1)
        claims.append(
            fleet.services.ledger.claim(
                ref,
                policy=fleet.policy.name,
                decision_hash=fleet.policy.decision_hash,
                lane=Lane.UPLOADS,
                worker="w",
                lease_s=lease_s,
                trace_id="t",
                event_at=None,
            )
        )
        return isinstance(claims[-1], Claimed)

    wait_for(claim)
    assert isinstance(claims[-1], Claimed)
    return claims[-1]


def _write(fleet: Fleet, *keys: str, content: bytes = b"x") -> list[str]:
    for key in keys:
        fleet.services.objects.put(fleet.stack.artifacts, key, content, "image/jpeg")
    return list(keys)


def _artifacts(fleet: Fleet) -> set[str]:
    return {ref.key for ref in fleet.services.objects.list(fleet.stack.artifacts)}


def _reconcile(fleet: Fleet, *, older_than_s: float = AGE_S, dry_run: bool = False) -> ReconcileCounts:
    return reconcile(
        fleet.services,
        fleet.policy,
        bucket=fleet.stack.originals,
        prefix="none/",
        older_than_s=older_than_s,
        artifacts_bucket=fleet.stack.artifacts,
        dry_run=dry_run,
    )


def test_only_what_belongs_to_no_result_is_deleted(fleet: Fleet) -> None:
    ledger = fleet.services.ledger
    gone = _write(fleet, *(f"runs/{uuid4()}/1/keyframes/{n:03d}.jpg" for n in range(3)))
    claim = _claim(fleet, "twice", lease_s=0.01)
    lost = _write(fleet, f"runs/{claim.run_id}/{claim.fence}/keyframes/000.jpg")
    second = _claim(fleet, "twice")
    assert (second.run_id, second.fence) == (claim.run_id, 2)
    result_key = f"runs/{second.run_id}/2/result.json"
    kept = _write(fleet, f"runs/{second.run_id}/2/keyframes/000.jpg", result_key)
    ledger.commit(second.run_id, 2, Commit(state=RunState.DECIDED, result_key=result_key))
    running = _claim(fleet, "running")
    kept += _write(fleet, f"runs/{running.run_id}/{running.fence}/keyframes/000.jpg")
    back = _claim(fleet, "given-back")
    lost += _write(fleet, f"runs/{back.run_id}/{back.fence}/keyframes/000.jpg")
    ledger.release(back.run_id, back.fence, reason=Reason.GIVEN_BACK, detail="", fault=False, hidden_s=0)
    rejected = _claim(fleet, "rejected")
    lost += _write(fleet, f"runs/{rejected.run_id}/{rejected.fence}/keyframes/000.jpg")
    ledger.commit(rejected.run_id, rejected.fence, Commit(state=RunState.REJECTED, reason=Reason.CORRUPT, detail=""))
    lost += _write(fleet, "probes/worker-1/content")
    kept += _write(fleet, "runs/not-a-run/1/x", "runs/readme", "other/file")
    wait_for(lambda: _reconcile(fleet, dry_run=True).orphans == len(gone) + len(lost))
    assert _artifacts(fleet) == {*gone, *lost, *kept}  # a dry run changes nothing
    assert _reconcile(fleet).orphans == len(gone) + len(lost)
    assert _artifacts(fleet) == set(kept)
    assert _reconcile(fleet).orphans == 0


def test_pictures_of_an_earlier_stage_that_the_result_names_are_kept(fleet: Fleet) -> None:
    first = _claim(fleet, "judged", lease_s=0.01)
    picture = f"runs/{first.run_id}/1/keyframes/000.jpg"
    unnamed = f"runs/{first.run_id}/2/keyframes/000.jpg"
    _write(fleet, picture, unnamed)
    _claim(fleet, "judged", lease_s=0.01)
    third = _claim(fleet, "judged")
    result_key = f"runs/{third.run_id}/3/result.json"
    _write(fleet, result_key, content=json.dumps({"keyframes": [{"image": picture}]}).encode())
    fleet.services.ledger.commit(third.run_id, 3, Commit(state=RunState.DECIDED, result_key=result_key))
    wait_for(lambda: _reconcile(fleet, dry_run=True).orphans == 1)
    _reconcile(fleet)
    assert _artifacts(fleet) == {picture, result_key}


def test_what_is_younger_than_the_age_is_left_alone(fleet: Fleet) -> None:
    keys = _write(fleet, f"runs/{uuid4()}/1/keyframes/000.jpg")
    assert _reconcile(fleet, older_than_s=3600).orphans == 0
    assert _artifacts(fleet) == set(keys)


def test_a_result_that_a_worker_committed_survives(fleet: Fleet, tmp_path: Path) -> None:
    fleet.upload(colour_clip(tmp_path / "red.mp4", RED))
    with fleet.worker():
        fleet.wait_until_settled(1)
    before = _artifacts(fleet)
    wait_for(lambda: _reconcile(fleet, dry_run=True).artifacts == len(before))
    assert _reconcile(fleet).orphans == 0
    assert _artifacts(fleet) == before


def test_a_dry_run_counts_objects_without_a_run_and_enqueues_nothing(fleet: Fleet, tmp_path: Path) -> None:
    fleet.upload(colour_clip(tmp_path / "red.mp4", RED), "lost/red.mp4")

    def dry() -> ReconcileCounts:
        return reconcile(
            fleet.services,
            fleet.policy,
            bucket=fleet.stack.originals,
            prefix="lost/",
            older_than_s=AGE_S,
            dry_run=True,
        )

    wait_for(lambda: dry().without_run == 1)
    assert fleet.runs() == []
