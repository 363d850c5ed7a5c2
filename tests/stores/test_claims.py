"""Leases, fences and commits, against a real PostgreSQL."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from pipeline.costs import CostsBy, StageCost
from pipeline.detections import Findings
from pipeline.errors import LeaseLostError, PermanentError, Reason, TransientError, UserError
from pipeline.media import ObjectRef
from pipeline.runs import Busy, Claimed, ClaimResult, Commit, Lane, RunView, Settled
from pipeline.stores import migrate
from pipeline.stores.ledger import Ledger
from pipeline.stores.schema import stage_costs
from pipeline.verdict import Answer, CascadeOutcome, Doubt, RunState, StageRecord, Verdict
from tests.services import THROWAWAY
from workers.local.postgres import EmbeddedPostgres

REF = ObjectRef("bucket", "a key.mp4", etag="e1", size_bytes=1000)


def claim(ledger: Ledger, ref: ObjectRef = REF, *, lease_s: float = 60, **changed: Any) -> ClaimResult:
    arguments: dict[str, Any] = {
        "policy": "moderation",
        "decision_hash": "h1",
        "lane": Lane.UPLOADS,
        "worker": "w1",
        "lease_s": lease_s,
        "trace_id": "trace-1",
        "event_at": None,
    }
    return ledger.claim(ref, **(arguments | changed))


def claimed(ledger: Ledger, ref: ObjectRef = REF, *, lease_s: float = 60, **changed: Any) -> Claimed:
    result = claim(ledger, ref, lease_s=lease_s, **changed)
    assert isinstance(result, Claimed)
    return result


def view(ledger: Ledger, run_id: UUID) -> RunView:
    found = ledger.run(run_id)
    assert found is not None
    return found


def verdict(question: str, answer: Answer = Answer.NEGATIVE) -> Verdict:
    return Verdict(question, answer, 0.25, "detector", "yolo", "ab", "moderation", "h1", "safety", (0, 2))


def outcome(*verdicts: Verdict) -> CascadeOutcome:
    findings = {0: Findings(()), 2: Findings(())}
    stage = StageRecord("detector", "yolo", "ab", ("face",), ("face",), findings, {"face": {0: 0.9}}, 1.5, 30, images=2)
    return CascadeOutcome(verdicts, (stage,))


def test_of_many_threads_that_claim_the_same_video_one_gets_it(database_url: str) -> None:
    ledger = Ledger.connect(database_url, pool_size=8)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: claim(ledger, worker=f"w{number}"), range(16)))
    assert [type(result) for result in results].count(Claimed) == 1
    assert [type(result) for result in results].count(Busy) == 15
    assert len({result.run_id for result in results}) == 1
    ledger.close()


def test_a_live_lease_keeps_others_away_for_as_long_as_it_lasts(ledger: Ledger) -> None:
    run = claimed(ledger, lease_s=60)
    other = claim(ledger)
    assert isinstance(other, Busy)
    assert other.run_id == run.run_id
    assert 50 < other.lease_left_s <= 60


def test_another_version_or_another_policy_is_another_run(ledger: Ledger) -> None:
    ids = {
        claimed(ledger).run_id,
        claimed(ledger, decision_hash="h2").run_id,
        claimed(ledger, ObjectRef("bucket", "a key.mp4", etag="e2")).run_id,
        claimed(ledger, ObjectRef("bucket", "a key.mp4", version_id="e1")).run_id,
    }
    assert len(ids) == 4


def test_an_expired_lease_is_taken_over_and_the_stale_worker_can_write_nothing(ledger: Ledger) -> None:
    stale = claimed(ledger, lease_s=0.05)
    time.sleep(0.1)
    new = claimed(ledger)
    assert (new.run_id, new.fence, new.attempts) == (stale.run_id, stale.fence + 1, 2)
    with pytest.raises(LeaseLostError):
        ledger.renew(stale.run_id, stale.fence, 60)
    with pytest.raises(LeaseLostError):
        ledger.commit(stale.run_id, stale.fence, Commit(RunState.DECIDED, outcome(verdict("face"))))
    with pytest.raises(LeaseLostError):
        ledger.release(stale.run_id, stale.fence, reason=Reason.THROTTLED, detail="", fault=True, hidden_s=0)
    found = view(ledger, new.run_id)
    assert (found.state, found.fence, found.faults, found.verdicts) == (RunState.PROCESSING, new.fence, 0, ())


def test_what_came_to_nothing_is_charged_and_the_sums_of_all_attempts_agree(ledger: Ledger) -> None:
    run = claimed(ledger)
    lost = StageCost("judge", "m", money_nano=70, requests=1, tokens_in=5)
    ledger.charge(run.run_id, run.fence, "EUR", lost)
    ledger.release(run.run_id, run.fence, reason=Reason.VLM_UNAVAILABLE, detail="", fault=False, hidden_s=0)
    with pytest.raises(LeaseLostError):
        ledger.charge(run.run_id, run.fence, "EUR", lost)
    again = claimed(ledger)
    ledger.charge(again.run_id, again.fence, "EUR", lost)  # and then given up, under the same fence
    costs = (StageCost("detector", money_nano=30), StageCost("review", money_nano=7, requests=1))
    ledger.commit(
        again.run_id, again.fence, Commit(RunState.DECIDED, outcome(verdict("face")), currency="EUR", costs=costs)
    )
    assert view(ledger, run.run_id).money_nano == 70 + 70 + 30 + 7
    sums = {found.group: found.total for found in ledger.costs(CostsBy.STAGE)}
    assert {stage: total.money_nano for stage, total in sums.items()} == {"detector": 30, "judge": 140, "review": 7}
    assert (sums["judge"].requests, sums["judge"].tokens_in) == (2, 10)


def test_an_expired_lease_cannot_be_renewed_even_if_nobody_took_it(ledger: Ledger) -> None:
    run = claimed(ledger, lease_s=0.05)
    time.sleep(0.1)
    with pytest.raises(LeaseLostError):
        ledger.renew(run.run_id, run.fence, 60)


def test_renewing_keeps_the_lease(ledger: Ledger) -> None:
    run = claimed(ledger, lease_s=0.3)
    ledger.renew(run.run_id, run.fence, 60)
    time.sleep(0.4)
    assert isinstance(claim(ledger), Busy)


def test_a_commit_writes_everything_once(ledger: Ledger) -> None:
    run = claimed(ledger, event_at=datetime.now(UTC) - timedelta(seconds=90))
    commit = Commit(
        RunState.DECIDED,
        outcome(verdict("nudity"), verdict("face", Answer.POSITIVE)),
        result_key="results/1.json",
        currency="USD",
        costs=(
            StageCost("keyframes", cpu_s=1.0, money_nano=12_315, bytes=500, every_frame_nano=9, every_keyframe_nano=8),
            StageCost("detector", "yolo", cpu_s=1.5, money_nano=30, images=2),
        ),
        warnings=("cut short",),
        coverage=0.75,
    )
    waited_s = ledger.commit(run.run_id, run.fence, commit)
    assert waited_s is not None
    assert 89 < waited_s < 120
    found = view(ledger, run.run_id)
    assert found.state is RunState.DECIDED
    assert found.decided_at is not None
    assert found.lease_until is None
    assert (found.money_nano, found.currency, found.cpu_s) == (12_345, "USD", 2.5)
    assert (found.result_key, found.warnings, found.coverage) == ("results/1.json", ("cut short",), 0.75)
    assert [(v.question, v.answer, v.evidence) for v in found.verdicts] == [
        ("nudity", Answer.NEGATIVE, (0, 2)),
        ("face", Answer.POSITIVE, (0, 2)),
    ]
    with ledger.database.begin() as connection:
        first, cost = connection.execute(sa.select(stage_costs).order_by(stage_costs.c.position)).all()
    assert (cost.stage, cost.model, cost.images, cost.money_nano, cost.cpu_s) == ("detector", "yolo", 2, 30, 1.5)
    assert (first.stage, first.model, first.bytes) == ("keyframes", None, 500)
    assert (first.every_frame_nano, first.every_keyframe_nano) == (9, 8)
    with pytest.raises(LeaseLostError):
        ledger.commit(run.run_id, run.fence, commit)
    settled = claim(ledger)
    assert settled == Settled(run.run_id, RunState.DECIDED)


def test_a_commit_that_fails_half_way_leaves_nothing(ledger: Ledger) -> None:
    run = claimed(ledger)
    with pytest.raises(TransientError, match="internal_error"):  # money has a currency
        ledger.commit(run.run_id, run.fence, Commit(RunState.DECIDED, outcome(verdict("a")), costs=(StageCost("a"),)))
    found = view(ledger, run.run_id)
    assert (found.state, found.verdicts) == (RunState.PROCESSING, ())
    ledger.renew(run.run_id, run.fence, 60)


def test_a_second_stage_adds_its_costs_and_settles_what_the_first_left_in_doubt(ledger: Ledger) -> None:
    first = claimed(ledger)
    screened = CascadeOutcome((verdict("face"), verdict("nudity", Answer.REVIEW)), (), doubts=(Doubt("nudity", (1,)),))
    assert screened.state is RunState.ESCALATED
    costs = (StageCost("keyframes", cpu_s=0.5, money_nano=7), StageCost("detector", "yolo", money_nano=30))
    ledger.commit(first.run_id, first.fence, Commit(RunState.ESCALATED, screened, currency="USD", costs=costs))
    assert [v.question for v in view(ledger, first.run_id).verdicts] == ["face"]
    assert ledger.reviews() == []  # the VLM comes first
    with ledger.database.begin() as connection:  # as the judging worker's claim does
        again = "UPDATE runs SET state = 'processing', fence = fence + 1, lease_until = now() + interval '1 min'"
        connection.execute(sa.text(again))
    judged = CascadeOutcome((verdict("face"), verdict("nudity", Answer.POSITIVE)), ())
    cost = StageCost("judge", "M/7B", money_nano=11, requests=1, tokens_in=900, tokens_cached=400, tokens_out=30)
    ledger.commit(first.run_id, first.fence + 1, Commit(RunState.DECIDED, judged, currency="USD", costs=(cost,)))
    found = view(ledger, first.run_id)
    assert [(v.question, v.answer) for v in found.verdicts] == [
        ("face", Answer.NEGATIVE),
        ("nudity", Answer.POSITIVE),
    ]
    assert (found.money_nano, found.cpu_s, found.currency) == (48, 0.5, "USD")
    with ledger.database.begin() as connection:
        total = connection.scalar(sa.select(sa.func.sum(stage_costs.c.money_nano)))
    assert total == found.money_nano


def test_a_deferred_run_waits_until_it_is_due_and_counts_no_attempt(ledger: Ledger) -> None:
    run = claimed(ledger)
    ledger.defer(run.run_id, run.fence, reason=Reason.BUDGET_EXHAUSTED, detail="tomorrow", due_in_s=60)
    found = view(ledger, run.run_id)
    assert (found.state, found.attempts, found.reason) == (RunState.DEFERRED, 0, "budget_exhausted")
    waiting = claim(ledger)
    assert isinstance(waiting, Busy)
    assert 50 < waiting.lease_left_s <= 60
    with pytest.raises(LeaseLostError):
        ledger.defer(run.run_id, run.fence, reason=Reason.BUDGET_EXHAUSTED, detail="", due_in_s=60)


def test_a_question_that_was_left_open_waits_for_nobody(ledger: Ledger) -> None:
    run = claimed(ledger)
    left = CascadeOutcome((verdict("face", Answer.OPEN),), ())
    assert left.state is RunState.DECIDED
    ledger.commit(run.run_id, run.fence, Commit(left.state, left))
    assert ledger.reviews() == []
    assert view(ledger, run.run_id).verdicts[0].answer is Answer.OPEN


def test_a_rejection_keeps_its_reason_even_if_the_detail_holds_strange_bytes(ledger: Ledger) -> None:
    run = claimed(ledger)
    commit = Commit(RunState.REJECTED, reason=Reason.CORRUPT, detail="bad\0atom \udcff", warnings=("\0",))
    assert ledger.commit(run.run_id, run.fence, commit) is None
    found = view(ledger, run.run_id)
    assert (found.state, found.reason, found.detail) == (RunState.REJECTED, "corrupt", "bad\ufffdatom ?")


def test_a_fault_of_the_video_counts_and_another_does_not(ledger: Ledger) -> None:
    run = claimed(ledger)
    ledger.release(run.run_id, run.fence, reason=Reason.THROTTLED, detail="slow down", fault=False, hidden_s=5)
    found = view(ledger, run.run_id)
    assert (found.state, found.attempts, found.faults) == (RunState.QUEUED, 0, 0)
    assert (found.reason, found.detail, found.lease_until) == ("throttled", "slow down", None)
    run = claimed(ledger)
    assert (run.fence, run.attempts, run.faults) == (2, 1, 0)
    ledger.release(run.run_id, run.fence, reason=Reason.DECODER_CRASHED, detail="", fault=True, hidden_s=5)
    run = claimed(ledger)
    assert (run.fence, run.attempts, run.faults) == (3, 2, 1)


@pytest.mark.parametrize("key", ["nul\0byte", "half \ud800 pair"])
def test_a_key_that_the_database_cannot_hold_is_the_messages_fault(ledger: Ledger, key: str) -> None:
    ref = ObjectRef("bucket", key, etag="e")
    calls: list[Any] = [
        lambda: claim(ledger, ref),
        lambda: ledger.register([ref], policy="p", decision_hash="h", lane=Lane.BACKFILL, trace_ids=["t"]),
    ]
    for call in calls:
        with pytest.raises(PermanentError) as caught:
            call()
        assert caught.value.reason is Reason.UNKNOWN_MESSAGE


def test_the_longest_key_and_version_fit(ledger: Ledger) -> None:
    key = "".join(chr(0x10000 + number) for number in range(256))  # 1,024 bytes
    assert claimed(ledger, ObjectRef("b" * 63, key, version_id="".join(map(chr, range(33, 127))) * 10)).fence == 1


def register(ledger: Ledger, refs: list[ObjectRef], prefix: str = "t") -> list[Any]:
    traces = [f"{prefix}{number}" for number in range(len(refs))]
    return ledger.register(refs, policy="moderation", decision_hash="h1", lane=Lane.BACKFILL, trace_ids=traces)


def test_registering_gives_what_must_be_sent_until_it_is_marked(ledger: Ledger) -> None:
    refs = [ObjectRef("bucket", f"k{number}", etag="e", size_bytes=number) for number in range(2500)]
    first = register(ledger, refs)
    assert [item.ref for item in first] == refs
    assert first[7].trace_id == "t7"
    again = register(ledger, refs, "u")
    assert [(item.run_id, item.trace_id) for item in again] == [(i.run_id, i.trace_id) for i in first]
    ledger.mark_enqueued([item.run_id for item in first[:2000]])
    ledger.mark_enqueued([item.run_id for item in first[:2000]])
    ledger.mark_enqueued([])
    assert [item.ref for item in register(ledger, refs)] == refs[2000:]
    assert ledger.counts()[RunState.QUEUED] == 2500


def test_an_object_given_twice_is_registered_once(ledger: Ledger) -> None:
    assert len(register(ledger, [REF, REF])) == 1


def test_runs_under_way_or_settled_are_not_registered_again(ledger: Ledger) -> None:
    run = claimed(ledger)
    assert register(ledger, [REF]) == []
    ledger.commit(run.run_id, run.fence, Commit(RunState.REJECTED, reason=Reason.CORRUPT))
    assert register(ledger, [REF]) == []


def test_many_can_register_the_same_objects_at_once(database_url: str) -> None:
    ledger = Ledger.connect(database_url)
    refs = [ObjectRef("bucket", f"k{number}", etag="e") for number in range(300)]
    with ThreadPoolExecutor(4) as threads:
        orders = [refs, refs[::-1], refs, refs[::-1]]
        results = list(threads.map(lambda given: register(ledger, given), orders))
    assert len({item.run_id for result in results for item in result}) == 300
    assert ledger.counts()[RunState.QUEUED] == 300
    ledger.close()


def test_stuck_runs_are_found_and_marking_them_gives_them_time(ledger: Ledger) -> None:
    abandoned = claimed(ledger, ObjectRef("bucket", "abandoned", etag="e"), lease_s=0.01)
    busy = claimed(ledger, ObjectRef("bucket", "busy", etag="e"))
    (lost,) = register(ledger, [ObjectRef("bucket", "lost", etag="e")])
    ledger.mark_enqueued([lost.run_id])
    time.sleep(0.25)
    assert {run.run_id for run in ledger.stale_runs(0.2, 10)} == {abandoned.run_id, lost.run_id}
    assert len(ledger.stale_runs(0.2, 1)) == 1
    ledger.mark_enqueued([abandoned.run_id, lost.run_id])
    assert ledger.stale_runs(0.2, 10) == []
    time.sleep(0.25)
    assert busy.run_id not in {run.run_id for run in ledger.stale_runs(0.2, 10)}
    assert ledger.stale_runs(60, 10) == []


def test_a_released_run_is_stale_only_after_the_time_it_was_hidden_for(ledger: Ledger) -> None:
    run = claimed(ledger)
    ledger.release(run.run_id, run.fence, reason=Reason.THROTTLED, detail="", fault=False, hidden_s=600)
    assert ledger.stale_runs(0, 10) == []


def test_a_failed_run_can_be_given_a_fresh_start(ledger: Ledger) -> None:
    run = claimed(ledger)
    ledger.commit(run.run_id, run.fence, Commit(RunState.FAILED, reason=Reason.INTERNAL_ERROR))
    assert claim(ledger) == Settled(run.run_id, RunState.FAILED)
    ledger.requeue(run.run_id, who="ops")
    assert [item.run_id for item in register(ledger, [REF])] == [run.run_id]
    assert claimed(ledger).attempts == 1
    with pytest.raises(UserError):
        ledger.requeue(run.run_id, who="ops")


def test_runs_are_listed_newest_first_and_counted(ledger: Ledger) -> None:
    runs = [claimed(ledger, ObjectRef("bucket", f"k{number}", etag="e")) for number in range(3)]
    ledger.commit(runs[0].run_id, runs[0].fence, Commit(RunState.FAILED, reason=Reason.INTERNAL_ERROR))
    assert [run.run_id for run in ledger.runs()] == [run.run_id for run in reversed(runs)]
    assert [run.run_id for run in ledger.runs(limit=1, offset=1)] == [runs[1].run_id]
    assert [run.key for run in ledger.runs(RunState.FAILED)] == ["k0"]
    counts = ledger.counts()
    assert (counts[RunState.PROCESSING], counts[RunState.FAILED], counts[RunState.DECIDED]) == (2, 1, 0)
    assert ledger.counts([RunState.QUEUED, RunState.PROCESSING]) == {RunState.QUEUED: 0, RunState.PROCESSING: 2}
    assert ledger.run(uuid4()) is None


def test_a_run_knows_its_pinned_object(ledger: Ledger) -> None:
    for ref in (REF, ObjectRef("bucket", "k", version_id="v:1", size_bytes=5)):
        assert view(ledger, claimed(ledger, ref).run_id).ref == ref


def test_a_stopped_database_is_a_transient_error_and_comes_back_by_itself(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, settings=THROWAWAY) as server:
        migrate.upgrade(server.url)
        ledger = Ledger.connect(server.url)
        run = claimed(ledger)
        for take_down in (server.stop, server.kill):
            take_down()
            before = time.monotonic()
            with pytest.raises(TransientError) as caught:
                ledger.renew(run.run_id, run.fence, 60)
            assert caught.value.reason is Reason.DATABASE_UNAVAILABLE
            assert time.monotonic() - before < 6
            server.start()
            ledger.renew(run.run_id, run.fence, 60)
        ledger.close()


def test_a_connection_lost_in_a_transaction_is_a_transient_error(ledger: Ledger, database_url: str) -> None:
    other = Ledger.connect(database_url)
    end_others = sa.text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def lose_the_connection() -> None:
        with ledger.database.begin() as connection:
            connection.execute(sa.select(1))
            with other.database.begin() as ender:
                ender.execute(end_others)
            connection.execute(sa.select(1))

    with pytest.raises(TransientError) as caught:
        lose_the_connection()
    assert caught.value.reason is Reason.DATABASE_UNAVAILABLE
    assert ledger.tenants() == []
    other.close()
