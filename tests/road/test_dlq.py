"""What was set aside can be seen, sent again by its cause, and thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import Reason
from pipeline.events import VideoMessage
from pipeline.runs import Claimed, Commit, Lane
from pipeline.verdict import RunState
from tests.road.conftest import BLUE, Fleet, colour_clip
from tests.road.test_road import drain
from workers.dlq import DeadLetter, Filter, discard, held, redrive


def _ignore(_: DeadLetter) -> None:
    pass


@pytest.fixture
def failed(fleet: Fleet, tmp_path: Path) -> Claimed:
    """A run that failed five times over a fault of ours, its message set aside; and a letter that is no event."""
    fleet.upload(colour_clip(tmp_path / "blue.mp4", BLUE), "good.mp4")
    drain(fleet, 1)
    (ref,) = fleet.services.objects.list(fleet.stack.originals)
    claim = fleet.services.ledger.claim(
        ref,
        policy=fleet.policy.name,
        decision_hash=fleet.policy.decision_hash,
        lane=Lane.UPLOADS,
        worker="w",
        lease_s=30,
        trace_id="trace",
        event_at=None,
    )
    assert isinstance(claim, Claimed)
    queues = fleet.services.queues
    body = VideoMessage.of(ref, decision_hash=None, trace_id="trace").model_dump_json(exclude_none=True)
    why = {"reason": "internal_error", "detail": "a fault of ours", "source": queues.uploads.name}
    queues.dead_letter.send(body, why | {"run_id": str(claim.run_id)})
    fleet.services.ledger.commit(claim.run_id, claim.fence, Commit(RunState.FAILED, reason=Reason.INTERNAL_ERROR))
    queues.dead_letter.send("hello", {"reason": "unknown_message", "detail": "not JSON", "source": queues.uploads.name})
    return claim


def test_letters_are_listed_with_their_reasons_and_stay_where_they_are(fleet: Fleet, failed: Claimed) -> None:
    queue = fleet.services.queues.dead_letter
    for _ in range(2):
        with held(queue, Filter()) as letters:
            found = [(letter.reason, letter.video, letter.run_id) for letter in letters]
        assert found == [
            ("internal_error", f"s3://{fleet.stack.originals}/good.mp4", failed.run_id),
            ("unknown_message", "", None),
        ]
    with held(queue, Filter(reason="unknown_message")) as letters:
        assert [letter.message.body for letter in letters] == ["hello"]
    with held(queue, Filter(contains="good")) as letters:
        assert len(letters) == 1
    with held(queue, Filter(ids=("nothing",))) as letters:
        assert letters == []


def test_a_redriven_run_is_decided_and_the_others_stay(fleet: Fleet, failed: Claimed) -> None:
    count = redrive(
        fleet.services.queues, fleet.services.ledger, Filter(reason="internal_error"), who="ada", progress=_ignore
    )
    assert count == 1
    with fleet.worker():
        (run,) = fleet.wait_until_settled(1)
        fleet.wait_until_empty()
    assert (run.run_id, run.state) == (failed.run_id, RunState.DECIDED)
    assert [letter["reason"] for letter in fleet.dead_letters()] == ["unknown_message"]


def test_what_is_discarded_is_gone_and_leaves_an_audit_line(fleet: Fleet, failed: Claimed) -> None:
    said: list[str] = []
    count = discard(
        fleet.services.queues,
        fleet.services.ledger,
        Filter(reason="unknown_message"),
        who="ada",
        why="a stray test",
        progress=lambda letter: said.append(letter.reason),
    )
    assert (count, said) == (1, ["unknown_message"])
    assert [letter["reason"] for letter in fleet.dead_letters()] == ["internal_error"]
    (run,) = fleet.runs()
    assert run.state is RunState.FAILED
