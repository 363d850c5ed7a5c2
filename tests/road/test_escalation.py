"""Screened, escalated, judged: through real stores and queues, against a scripted engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline.cascade.cost import caps
from pipeline.cascade.policy import Policy
from pipeline.costs import CostsBy
from pipeline.errors import Reason
from pipeline.models.chat_client import ChatClient, Deadlines
from pipeline.runs import RunView
from pipeline.stores.schema import budgets
from pipeline.verdict import Answer, RunState
from tests.road.conftest import BLUE, PURPLE, RED, Fleet, StartWorker, colour_clip
from tests.vlm.canary import is_canary, knows
from tests.vlm.server import Behaviour, Call, ScriptedServer, says, serving, statement, status
from tests.waiting import wait_for
from workers.dlq import Filter, redrive
from workers.judge import Judging, open_judging
from workers.reconcile import reconcile
from workers.settings import VlmSettings, WorkerSettings

DEADLINES = Deadlines(connect_s=2, first_token_s=10, next_token_s=10, total_s=20)


def with_vlm(policy: Policy, **commercial: Any) -> Policy:
    document = policy.model_dump(mode="json", exclude_none=True)
    document["decision"]["vlm"] = {
        "name": "judge",
        "model": "Org/Model-7B",
        "prompt": "You look at colours.",
        "answers": {
            colour: {"wording": f"Is it {colour}?", "positive_at": 0.8, "negative_at": 0.2}
            for colour in ("red", "blue")
        },
    }
    document["commercial"] |= commercial
    document["commercial"]["prices"]["vlm"] = {"token_in": "0.000001", "token_out": "0.00001"}
    return Policy.model_validate(document)


@pytest.fixture
def judged(fleet: Fleet) -> Fleet:
    return replace(fleet, policy=with_vlm(fleet.policy))


@contextmanager
def judging(
    fleet: Fleet, server: ScriptedServer, *, lease_s: float = 30.0, concurrency: int = 4, **vlm: Any
) -> Iterator[Judging]:
    """A judging worker in this process for the length of the `with` block."""
    ledger, policy = fleet.services.ledger, fleet.policy
    ledger.remember_policy(policy.name, policy.decision_hash, policy.document())
    with (
        ChatClient(server.url, api_key=None, deadlines=DEADLINES, max_connections=concurrency) as client,
        open_judging(
            fleet.services,
            policy,
            client,
            fleet.metrics,
            vlm=VlmSettings(concurrency=concurrency, **vlm),
            worker=WorkerSettings(lease_s=lease_s, poll_wait_s=1),
            artifacts_bucket=fleet.stack.artifacts,
            name="judge",
        ) as parts,
    ):
        thread = threading.Thread(target=parts.consumer.run)
        thread.start()
        try:
            yield parts
        finally:
            parts.consumer.stop()
            thread.join()


def says_yes_to(*colours: str) -> Behaviour:
    """Yes to these, no to the others; right about the known-answer pictures."""

    def text(call: Call) -> str:
        found = {q: statement("yes", 97, [0]) if q in colours else statement("no", 2) for q in call.questions}
        return json.dumps({"seen": "a colour", "answers": found})

    return knows(says(text))


def escalated(fleet: Fleet, count: int = 1, path: Path | None = None) -> list[RunView]:
    """Upload purple clips, which no cheap stage can settle, and screen them."""
    assert path is not None
    for number in range(count):
        fleet.upload(colour_clip(path / f"{number}.mp4", PURPLE))
    with fleet.worker(has_vlm=True):
        wait_for(lambda: fleet.services.ledger.counts()[RunState.ESCALATED] == count, timeout_s=120)
    return fleet.runs()


def messages(fleet: Fleet) -> int:
    depth = fleet.services.queues.escalation.depth()
    return depth["visible"] + depth["in_flight"] + depth["delayed"]


def test_what_is_in_doubt_is_judged_and_what_is_clear_never_meets_the_engine(judged: Fleet, tmp_path: Path) -> None:
    keys = {colour: judged.upload(colour_clip(tmp_path / f"{colour}.mp4", bgr)) for colour, bgr in
            {"red": RED, "blue": BLUE, "purple": PURPLE}.items()}  # fmt: skip
    with serving(default=says_yes_to("red")) as server, judged.worker(has_vlm=True), judging(judged, server):
        runs = {run.key: run for run in judged.wait_until_settled(3)}
        judged.wait_until_empty()
        asked = [call for call in server.calls if set(call.questions) <= {"red", "blue"}]
    assert {run.state for run in runs.values()} == {RunState.DECIDED}
    assert len(asked) == 1
    purple = runs[keys["purple"]]
    assert {v.question: (v.answer, v.stage) for v in purple.verdicts} == {
        "red": (Answer.POSITIVE, "judge"),
        "blue": (Answer.NEGATIVE, "judge"),
    }
    assert {v.stage for v in runs[keys["red"]].verdicts} == {"detector"}
    document = result(judged, purple)
    assert document["state"] == "decided"
    assert document["doubts"] == []
    assert [stage["stage"] for stage in document["stages"]] == ["detector", "judge"]
    assert document["stages"][1]["usage"]["tokens_in"] == 1200
    assert document["money"]["total_nano"] == purple.money_nano
    assert purple.money_nano >= 1200 * 1000 + 40 * 10_000
    assert judged.metrics.registry.get_sample_value("videosieve_vlm_canary_ratio") == 1.0


def result(fleet: Fleet, run: RunView) -> dict[str, Any]:
    assert run.result_key is not None
    document: dict[str, Any] = json.loads(fleet.services.objects.get(fleet.stack.artifacts, run.result_key))
    return document


def test_without_an_engine_a_person_is_asked_and_told_why(judged: Fleet, tmp_path: Path) -> None:
    judged.upload(colour_clip(tmp_path / "purple.mp4", PURPLE))
    with judged.worker(has_vlm=False):
        (run,) = judged.wait_until_settled(1)
    assert run.state is RunState.IN_REVIEW
    assert {v.reason for v in run.verdicts} == {Reason.NO_VLM.value}
    assert messages(judged) == 0


def test_an_escalated_run_keeps_its_state_and_shows_nobody_a_review_yet(judged: Fleet, tmp_path: Path) -> None:
    (run,) = escalated(judged, path=tmp_path)
    assert run.verdicts == ()
    assert judged.services.ledger.reviews() == []
    assert messages(judged) == 1
    document = result(judged, run)
    assert [doubt["question"] for doubt in document["doubts"]] == ["red", "blue"]


def test_a_redelivered_message_of_an_escalated_run_sends_it_on_again(judged: Fleet, tmp_path: Path) -> None:
    (run,) = escalated(judged, path=tmp_path)
    queue = judged.services.queues.escalation
    for message in queue.receive(wait_s=1, visibility_s=60):
        queue.delete(message)  # as if its sender had died before sending
    assert messages(judged) == 0
    body = {"type": "videosieve.video", "bucket": run.bucket, "key": run.key, "etag": run.ref.etag}
    judged.services.queues.uploads.send(json.dumps(body | {"size_bytes": run.size_bytes}))
    with judged.worker(has_vlm=True):
        wait_for(lambda: messages(judged) == 1)


def test_reconcile_finds_an_escalated_run_whose_message_is_lost(judged: Fleet, tmp_path: Path) -> None:
    escalated(judged, path=tmp_path)
    queue = judged.services.queues.escalation
    for message in queue.receive(wait_s=1, visibility_s=60):
        queue.delete(message)
    counts = reconcile(judged.services, judged.policy, bucket=judged.stack.originals, prefix="", older_than_s=0)
    assert counts.stale_runs == 1
    assert messages(judged) == 1
    with serving(default=says_yes_to("red")) as server, judging(judged, server):
        (run,) = judged.wait_until_settled(1)
    assert run.state is RunState.DECIDED


def test_many_judges_and_duplicate_messages_commit_each_run_once(judged: Fleet, tmp_path: Path) -> None:
    runs = escalated(judged, 3, tmp_path)
    for run in runs:
        message = {"type": "videosieve.video", "bucket": run.bucket, "key": run.key, "etag": run.ref.etag}
        for _ in range(3):
            judged.services.queues.escalation.send(json.dumps(message | {"decision_hash": run.decision_hash}))
    with (
        serving(default=says_yes_to("blue")) as server,
        judging(judged, server, lease_s=4),
        judging(judged, server, lease_s=4),
    ):
        judged.wait_until_settled(3)
        judged.wait_until_empty()
        asked = [call for call in server.calls if set(call.questions) <= {"red", "blue"}]
    assert len(asked) == 3  # one request a run: nobody pays twice
    for run in judged.runs():
        assert run.state is RunState.DECIDED
        assert run.attempts == 1
    assert judged.dead_letters() == []


def test_an_answer_that_is_no_use_goes_to_a_person_with_the_reason(judged: Fleet, tmp_path: Path) -> None:
    escalated(judged, path=tmp_path)
    with serving(default=knows(says("I'd rather not."))) as server, judging(judged, server):
        (run,) = judged.wait_until_settled(1)
    assert run.state is RunState.IN_REVIEW
    assert {v.reason for v in run.verdicts} == {Reason.VLM_INVALID_OUTPUT.value}
    assert len(judged.services.ledger.reviews()) == 2


REFUSES_ALL = {
    "nonsense": says("certainly!"),
    "400": status(400),
    "404": status(404),
}


@pytest.mark.parametrize("wrong", list(REFUSES_ALL))
def test_an_engine_that_is_no_use_to_anybody_is_left_alone_until_it_knows_the_canary_again(
    judged: Fleet, tmp_path: Path, wrong: str
) -> None:
    """A wrong model name, an unknown parameter, a lost schema: nobody's backlog goes to people for it."""
    count = 4
    escalated(judged, count, tmp_path)
    with serving(default=REFUSES_ALL[wrong]) as server, judging(judged, server) as parts:
        wait_for(lambda: "engine" in parts.breakers.troubles() and not len(parts.flights), timeout_s=60)
        assert judged.services.ledger.counts()[RunState.ESCALATED] == count
        server.default = says_yes_to("red")
        judged.wait_until_settled(count, timeout_s=120)
        judged.wait_until_empty()
    runs = judged.runs()
    assert {run.state for run in runs} == {RunState.DECIDED}
    assert {(run.attempts, run.faults) for run in runs} == {(1, 0)}
    assert judged.dead_letters() == []


@pytest.mark.parametrize("refusal", [status(400), status(413)], ids=["400", "413"])
def test_a_single_request_that_is_refused_goes_to_a_person_at_once(
    judged: Fleet, tmp_path: Path, refusal: Behaviour
) -> None:
    escalated(judged, path=tmp_path)
    with serving(default=knows(refusal)) as server, judging(judged, server):
        (run,) = judged.wait_until_settled(1)
        asked = [call for call in server.calls if not is_canary(call)]
    assert len(asked) == 1
    assert run.state is RunState.IN_REVIEW
    assert {v.reason for v in run.verdicts} == {Reason.VLM_REQUEST_REFUSED.value}
    assert [v.score for v in run.verdicts] == pytest.approx([128 / 255] * 2, abs=0.02)  # what the detector made of it


def test_videos_that_make_the_engine_fail_end_with_a_person_though_nothing_else_is_to_be_judged(
    judged: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.judging.OWN_FAULT_DELIVERIES", 2)  # five more would take minutes
    escalated(judged, 2, tmp_path)
    with serving(default=knows(status(500))) as server, judging(judged, server):
        runs = judged.wait_until_settled(2, timeout_s=120)
        asked = [call for call in server.calls if not is_canary(call)]
    assert {run.state for run in runs} == {RunState.IN_REVIEW}
    assert {v.reason for run in runs for v in run.verdicts} == {Reason.VLM_UNAVAILABLE.value}
    assert len(asked) == 4


def test_what_a_broken_off_answer_may_cost_is_in_the_books_and_they_add_up(judged: Fleet, tmp_path: Path) -> None:
    """The engine bills what it began, so that counts: in the run, the ledger, the budget and the document alike."""

    def breaks_off(call: Call) -> None:
        call.head()
        call.piece('{"seen": ')
        call.reset()

    counted = replace(judged, policy=with_vlm(judged.policy, budgets={"per_day": {"amount": 1000}}))
    escalated(counted, path=tmp_path)
    ledger = counted.services.ledger
    with serving(default=knows(breaks_off)) as server, judging(counted, server):
        wait_for(lambda: any(not is_canary(call) for call in server.calls), timeout_s=60)
        wait_for(lambda: ledger.budget(caps(counted.policy))[1] == 0)
        lost_nano = ledger.budget(caps(counted.policy))[0]
        server.default = says_yes_to("red")
        (run,) = counted.wait_until_settled(1, timeout_s=60)
    asked = [call for call in server.calls if not is_canary(call)]
    assert run.state is RunState.DECIDED
    (judge,) = [found for found in ledger.costs(CostsBy.STAGE) if found.group == "judge"]
    assert judge.total.requests == len(asked) == 2
    assert lost_nano > 1200 * 1000 + 40 * 10_000  # the worst case, and not what an answer really takes
    assert ledger.budget(caps(counted.policy))[0] == lost_nano + 1200 * 1000 + 40 * 10_000
    assert sum(found.total.money_nano for found in ledger.costs(CostsBy.STAGE)) == run.money_nano
    assert result(counted, run)["money"]["total_nano"] == run.money_nano


def test_the_judging_worker_runs_as_a_process_and_stops_when_told(
    judged: Fleet, tmp_path: Path, start_worker: StartWorker
) -> None:
    escalated(judged, path=tmp_path)
    policy = judged.policy  # its settings name another one, that asks no VLM
    ledger = judged.services.ledger
    ledger.activate_policy(policy.name, policy.decision_hash, policy.document(), who="tester", why="to see")
    with serving(default=says_yes_to("red")) as server:
        process = start_worker(
            command="judge",
            VIDEOSIEVE_VLM__URL=server.url,
            VIDEOSIEVE_VLM__API_KEY="sk-secret-of-the-test",
            VIDEOSIEVE_VLM__METRICS_PORT="0",
        )
        (run,) = judged.wait_until_settled(1)
        wait_for(lambda: any(is_canary(call) for call in server.calls))
        process.terminate()
        assert process.wait(30) == 0
        assert {call.headers["Authorization"] for call in server.calls} == {"Bearer sk-secret-of-the-test"}
    assert run.state is RunState.DECIDED
    log = (tmp_path / "worker-0.log").read_text()
    assert "judge_started" in log
    assert "sk-secret" not in log


@pytest.mark.parametrize("outage", [status(500), status(503), status(429, Retry_After="1")], ids=["500", "503", "429"])
def test_an_outage_under_load_costs_no_message_and_no_attempt(
    judged: Fleet, tmp_path: Path, outage: Callable[[Call], None]
) -> None:
    count = 8
    escalated(judged, count, tmp_path)
    with serving(default=outage) as server, judging(judged, server):
        wait_for(lambda: len(server.calls) >= 6, timeout_s=60)
        counts = judged.services.ledger.counts()
        assert counts[RunState.ESCALATED] == count
        server.default = says_yes_to("red")
        judged.wait_until_settled(count, timeout_s=120)
        judged.wait_until_empty()
    runs = judged.runs()
    assert {run.state for run in runs} == {RunState.DECIDED}
    assert {run.attempts for run in runs} == {1}
    assert {run.faults for run in runs} == {0}
    assert judged.dead_letters() == []


def spend_all(fleet: Fleet) -> None:
    """Leave nothing of today's budget."""
    limits = caps(fleet.policy)
    today = {"policy": limits.policy, "currency": limits.currency, "day": sa.text("timezone('UTC', now())::date")}
    with fleet.services.ledger.database.begin() as connection:
        connection.execute(sa.insert(budgets).values(today | {"subject": "all", "spent_nano": limits.per_day_nano}))


@pytest.mark.parametrize(("scope", "amount"), [("per_day", "0.000001"), ("per_day", 0), ("per_video", "0.000001")])
def test_a_budget_that_can_never_pay_for_a_request_is_waited_for_by_nobody(
    fleet: Fleet, tmp_path: Path, scope: str, amount: str | int
) -> None:
    """`defer` waits for the next day; a video's own budget has none, and a day's that is too small has it in vain."""
    poor = replace(fleet, policy=with_vlm(fleet.policy, budgets={scope: {"amount": amount, "when_spent": "defer"}}))
    escalated(poor, path=tmp_path)
    with serving(default=says_yes_to("red")) as server, judging(poor, server):
        (run,) = poor.wait_until_settled(1)
    assert run.state is RunState.IN_REVIEW
    assert {v.reason for v in run.verdicts} == {Reason.BUDGET_EXHAUSTED.value}


@pytest.mark.parametrize(("when_spent", "state", "answer"), [
    ("review", RunState.IN_REVIEW, Answer.REVIEW),
    ("leave_open", RunState.DECIDED, Answer.OPEN),
    ("defer", RunState.DEFERRED, None),
])  # fmt: skip
def test_a_spent_budget_does_what_the_policy_says(
    fleet: Fleet, tmp_path: Path, when_spent: str, state: RunState, answer: Answer | None
) -> None:
    poor = replace(fleet, policy=with_vlm(fleet.policy, budgets={"per_day": {"amount": 1, "when_spent": when_spent}}))
    escalated(poor, path=tmp_path)
    spend_all(poor)
    with serving(default=says_yes_to("red")) as server, judging(poor, server):
        wait_for(lambda: poor.services.ledger.counts()[state] == 1, timeout_s=60)
        asked = [call for call in server.calls if set(call.questions) <= {"red", "blue"}]
    assert asked == []
    (run,) = poor.runs()
    assert {v.answer for v in run.verdicts} == ({answer} if answer else set())
    assert run.reason == (Reason.BUDGET_EXHAUSTED.value if when_spent == "defer" else None)
    if answer is not None:
        assert {v.reason for v in run.verdicts} == {Reason.BUDGET_EXHAUSTED.value}


def test_a_run_that_failed_in_judging_begins_anew_when_it_is_redriven(
    judged: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What screening kept is lost here, so that only a screening worker can help."""
    monkeypatch.setattr("pipeline.disposition.MAX_ATTEMPTS", 1)
    (run,) = escalated(judged, path=tmp_path)
    assert run.result_key is not None
    judged.services.objects.delete_prefix(judged.stack.artifacts, run.result_key)
    with serving(default=says_yes_to("red")) as server, judging(judged, server), judged.worker(has_vlm=True):
        wait_for(lambda: judged.services.ledger.counts()[RunState.FAILED] == 1, timeout_s=60)
        wait_for(lambda: judged.services.queues.dead_letter.depth()["visible"] == 1)
        redriven = redrive(
            judged.services.queues, judged.services.ledger, Filter(), who="tester", progress=lambda _: None
        )
        assert redriven == 1
        (run,) = judged.wait_until_settled(1)
    assert run.state is RunState.DECIDED
    assert {verdict.stage for verdict in run.verdicts} == {"judge"}


def test_a_message_that_no_run_belongs_to_is_set_aside(judged: Fleet) -> None:
    body = {
        "type": "videosieve.video",
        "bucket": "b",
        "key": "k",
        "etag": "e",
        "decision_hash": judged.policy.decision_hash,
    }
    judged.services.queues.escalation.send(json.dumps(body))
    judged.services.queues.escalation.send(json.dumps({"type": "videosieve.video", "bucket": "b", "key": "k"}))
    with serving(default=says_yes_to("red")) as server, judging(judged, server):
        wait_for(lambda: judged.services.queues.dead_letter.depth()["visible"] == 2)
        wait_for(lambda: messages(judged) == 0)
    assert {letter["reason"] for letter in judged.dead_letters()} == {"unknown_message"}
