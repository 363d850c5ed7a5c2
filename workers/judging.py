"""Judges one escalated video: claim → what screening kept → one request to the VLM → verdicts → commit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from pipeline.budgets import BudgetBook, Caps, Exhausted, Reservation
from pipeline.cascade.cascade import unasked_verdict
from pipeline.cascade.commercial import WhenSpent
from pipeline.cascade.cost import caps, cost_of, review_costs, vlm_cost, vlm_nano, worst_case_nano
from pipeline.cascade.policy import Policy
from pipeline.chat import Engine
from pipeline.disposition import Action, Disposition
from pipeline.errors import PermanentError, Reason, TransientError, VideosieveError
from pipeline.events import VideoEvent
from pipeline.runs import Busy, Claimed, Commit, Settled
from pipeline.verdict import Answer, CascadeOutcome, StageRecord, VlmUsage
from pipeline.vlm.case import Case, case_of
from pipeline.vlm.judge import MOST_REQUESTS, Asked, Judgement, UnjudgedError, judge, prepare
from pipeline.vlm.merge import merged_document, merged_outcome, stage_record
from workers.asking import Canary
from workers.bootstrap import Services
from workers.counting import count_costs
from workers.ending import Ending, Watch, machine_full
from workers.flight import Flight
from workers.logs import get_logger
from workers.metrics import Metrics
from workers.policies import recorded_policy

HELD_RETRY_S = 2.0
"""How long a run waits for what others hold of its budget, about as long as a request takes."""

OWN_FAULT_DELIVERIES = 6
"""A video that failed this often with an engine that works otherwise would fail for ever."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What screening kept of a run, read back. `lost_nano` is what attempts cost that came to nothing."""

    document: Mapping[str, Any]
    case: Case
    jpegs: dict[int, bytes]
    lost_nano: int


@dataclass(frozen=True, slots=True)
class Judge:
    """Turns escalated runs into decided ones. Thread-safe; one instance serves all threads of a worker."""

    services: Services
    budgets: BudgetBook
    engine: Engine
    canary: Canary
    watch: Watch
    metrics: Metrics
    worker: str
    artifacts_bucket: str
    lease_s: float
    logprobs: bool

    def handle(self, event: VideoEvent, flight: Flight) -> Disposition:
        """Bring one run as far as it gets now, and say what becomes of its message.

        Raises FatalError only, with the run given back, when our set-up is at fault.
        """
        with structlog.contextvars.bound_contextvars(video=event.ref.url, trace_id=event.trace_id):
            try:
                return self._handle(event, flight)
            except VideosieveError as error:
                return self._ending.without_run(event, flight, error)
            except Exception as error:  # noqa: BLE001 - the message handler: a fault of ours must not end the worker
                get_logger().exception("judging_failed")
                return self._ending.without_run(event, flight, machine_full(error))

    def _handle(self, event: VideoEvent, flight: Flight) -> Disposition:
        if event.decision_hash is None or not event.ref.is_resolved:
            raise PermanentError(Reason.UNKNOWN_MESSAGE, "an escalation names its object's version and its policy")
        policy = recorded_policy(self.services.ledger, event.decision_hash)
        claim = self.services.ledger.claim_escalated(
            event.ref, decision_hash=event.decision_hash, worker=self.worker, lease_s=self.lease_s
        )
        self.metrics.claims.labels(result=type(claim).__name__.lower()).inc()
        match claim:
            case Settled():
                get_logger().info("duplicate_avoided", run_id=str(claim.run_id), state=claim.state.value)
                return Disposition(Action.ACKNOWLEDGE)
            case Busy():
                return Disposition(Action.RETRY, delay_s=claim.lease_left_s)
            case Claimed():
                with (
                    structlog.contextvars.bound_contextvars(run_id=str(claim.run_id), trace_id=claim.trace_id),
                    flight.holding(claim),
                ):
                    return self._run(event, flight, policy, claim)

    def _run(self, event: VideoEvent, flight: Flight, policy: Policy, claim: Claimed) -> Disposition:
        try:
            return self._judge(policy, claim)
        except PermanentError as error:  # what we kept ourselves is missing or broken: no fault of the video's
            get_logger().error("kept_state_unusable", reason=error.reason.value, detail=error.detail)
            return self._ending.of_run(event, flight, claim, None)
        except VideosieveError as error:
            if self._is_own_fault(policy, flight, error):
                return self._give_up_on(policy, claim, error)
            return self._ending.of_run(event, flight, claim, error)
        except Exception as error:  # noqa: BLE001 - as above; here the run is known, so the attempt is charged to it
            get_logger().exception("judging_failed")
            return self._ending.of_run(event, flight, claim, machine_full(error))

    def _judge(self, policy: Policy, claim: Claimed) -> Disposition:
        self.metrics.latency_goal.set(policy.commercial.latency_goal_s)
        kept = self._read(policy, claim)
        cpu_started_s = time.thread_time()
        asked = prepare(policy, kept.case, kept.jpegs, logprobs=self.logprobs)
        worst_nano = worst_case_nano(policy, text_bytes=asked.text_bytes, requests=MOST_REQUESTS)
        held = self._reserve(caps(policy), claim, worst_nano)
        if isinstance(held, Exhausted):
            return self._spent(policy, claim, kept, held)
        usage = VlmUsage()
        try:
            judgement = self._ask(policy, kept.case, asked)
            usage = judgement.usage
        except UnjudgedError as error:
            usage = error.usage
            self._charge(policy, claim, usage)
            raise
        finally:
            if held is not None:
                self.budgets.settle(held, vlm_nano(policy.commercial.prices.vlm, usage))
        stage = stage_record(policy, kept.case, judgement, cpu_s=time.thread_time() - cpu_started_s)
        outcome = merged_outcome(kept.document, judgement.verdicts, [stage])
        self._finish(policy, claim, kept, outcome, judgement)
        self.watch.worked()
        self._count(stage, judgement)
        return Disposition(Action.ACKNOWLEDGE)

    def _ask(self, policy: Policy, case: Case, asked: Asked) -> Judgement:
        """What the engine says. Raises UnjudgedError where it is at fault: also for an answer that is no use from an
        engine that gives the known-answer pictures none either."""
        stage = policy.decision.vlm
        if stage is None:
            raise ValueError(f"policy '{policy.name}' has no VLM stage")
        began_s = self.canary.uses(stage)
        judgement = judge(policy, case, asked, self.engine)
        if judgement.problem is None:
            self.canary.worked(stage)
            return judgement
        problem = judgement.problem
        get_logger().warning("vlm_answer_unusable", reason=problem.reason.value, detail=problem.detail)
        try:
            self.canary.vouch(stage, began_s)
        except TransientError as error:
            raise UnjudgedError(error, judgement.usage) from error
        return judgement

    def _charge(self, policy: Policy, claim: Claimed, usage: VlmUsage) -> None:
        """What an attempt cost that came to nothing belongs in the books too."""
        if usage.requests:
            cost = vlm_cost(policy, usage)
            self.services.ledger.charge(claim.run_id, claim.fence, policy.commercial.currency, cost)
            count_costs(self.metrics, policy.commercial.currency, [cost])

    def _read(self, policy: Policy, claim: Claimed) -> _Kept:
        """The run's state from its artifacts. Raises PermanentError where it is not there, or not as it was."""
        run = self.services.ledger.run(claim.run_id)
        if run is None or run.result_key is None:
            raise PermanentError(Reason.NOT_FOUND, f"run {claim.run_id} kept no result")
        document = json.loads(self.services.objects.get(self.artifacts_bucket, run.result_key))
        case = case_of(policy, document)
        get = self.services.objects.get
        jpegs = {index: get(self.artifacts_bucket, frame.image) for index, frame in case.frames.items()}
        return _Kept(document, case, jpegs, run.money_nano - document["money"]["total_nano"])

    def _reserve(self, wanted: Caps, claim: Claimed, amount_nano: int) -> Reservation | Exhausted | None:
        """Money for the worst case; None where the policy has no budget to keep to."""
        if wanted.per_video_nano is wanted.per_tenant_day_nano is wanted.per_day_nano is None:
            return None
        return self.budgets.reserve(claim.run_id, claim.fence, caps=wanted, amount_nano=amount_nano)

    def _spent(self, policy: Policy, claim: Claimed, kept: _Kept, spent: Exhausted) -> Disposition:
        """What the policy wants once a budget is spent: a person, later, or no answer. What is only held comes back."""
        when_spent = policy.commercial.budgets.when_spent(spent.scope)
        detail = (
            f"budget {spent.scope.value}: {spent.spent_nano} spent and {spent.reserved_nano} reserved "
            f"of {spent.cap_nano} nano-units"
        )
        get_logger().info(
            "budget_exhausted",
            only_held=spent.is_held_only,
            scope=spent.scope.value,
            then=when_spent.value,
            detail=detail,
        )
        if spent.is_held_only:
            release = self.services.ledger.release
            release(
                claim.run_id,
                claim.fence,
                reason=Reason.BUDGET_EXHAUSTED,
                detail=detail,
                fault=False,
                hidden_s=HELD_RETRY_S,
            )
            return Disposition(Action.RETRY, delay_s=HELD_RETRY_S)
        if when_spent is WhenSpent.DEFER and spent.comes_back_in_s is not None:
            self.services.ledger.defer(
                claim.run_id,
                claim.fence,
                reason=Reason.BUDGET_EXHAUSTED,
                detail=detail,
                due_in_s=spent.comes_back_in_s,
            )
            return Disposition(Action.ACKNOWLEDGE)
        answer = Answer.OPEN if when_spent is WhenSpent.LEAVE_OPEN else Answer.REVIEW
        self._finish_without_answer(policy, claim, kept, Reason.BUDGET_EXHAUSTED, answer)
        return Disposition(Action.ACKNOWLEDGE)

    def _is_own_fault(self, policy: Policy, flight: Flight, error: VideosieveError) -> bool:
        """Whether the engine fails for this video alone, so that waiting would not end."""
        stage, deliveries = policy.decision.vlm, flight.message.receive_count
        if stage is None or error.reason is not Reason.VLM_UNAVAILABLE or deliveries < OWN_FAULT_DELIVERIES:
            return False
        try:
            self.canary.look(stage)
        except TransientError:
            return False
        return True

    def _give_up_on(self, policy: Policy, claim: Claimed, error: VideosieveError) -> Disposition:
        get_logger().warning("vlm_fails_for_this_video", reason=error.reason.value, detail=error.detail)
        self._finish_without_answer(policy, claim, self._read(policy, claim), error.reason, Answer.REVIEW)
        return Disposition(Action.ACKNOWLEDGE)

    def _finish_without_answer(
        self, policy: Policy, claim: Claimed, kept: _Kept, reason: Reason, answer: Answer
    ) -> None:
        verdicts = [
            unasked_verdict(
                policy, question.question, answer, reason, score=question.score, evidence=question.keyframes
            )
            for question in kept.case.open
        ]
        self._finish(policy, claim, kept, merged_outcome(kept.document, verdicts, []), None)

    def _finish(
        self, policy: Policy, claim: Claimed, kept: _Kept, outcome: CascadeOutcome, judgement: Judgement | None
    ) -> None:
        """Write the result under a key of this run and fence, then commit it: only that makes it the result."""
        document = merged_document(kept.document, policy, outcome, judgement, lost_nano=kept.lost_nano)
        result_key = f"runs/{claim.run_id}/{claim.fence}/result.json"
        self.services.objects.put(self.artifacts_bucket, result_key, json.dumps(document).encode(), "application/json")
        commit = Commit(
            state=outcome.state,
            outcome=outcome,
            result_key=result_key,
            currency=policy.commercial.currency,
            costs=(*map(cost_of, outcome.stages), *review_costs(policy, outcome, among=kept.case.questions)),
            warnings=tuple(kept.document["warnings"]),
            coverage=kept.case.coverage,
        )
        self._ending.commit(claim, commit)
        count_costs(self.metrics, policy.commercial.currency, commit.costs)
        for verdict in outcome.verdicts:
            if verdict.question in kept.case.questions:
                self.metrics.verdicts.labels(
                    policy=policy.name, question=verdict.question, answer=verdict.answer.value, stage=verdict.stage
                ).inc()

    @property
    def _ending(self) -> Ending:
        return Ending(self.services, self.metrics, self.lease_s, self.watch)

    def _count(self, stage: StageRecord, judgement: Judgement) -> None:
        metrics, usage = self.metrics, judgement.usage
        metrics.vlm_tokens.labels(kind="in").inc(usage.tokens_in)
        metrics.vlm_tokens.labels(kind="cached").inc(usage.tokens_cached)
        metrics.vlm_tokens.labels(kind="out").inc(usage.tokens_out)
        metrics.vlm_usage_estimated.inc(judgement.estimated)
        metrics.vlm_images.inc(stage.images)
