"""Screens one video: claim → keyframes → cascade → artifacts → commit."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

import structlog

from pipeline.analyze import Analysis, Extractor, analyze
from pipeline.cascade.cost import stage_costs
from pipeline.cascade.policy import Policy
from pipeline.cascade.ports import Models
from pipeline.disposition import Action, Disposition, disposition
from pipeline.document import analysis_document
from pipeline.errors import (
    FatalError,
    LeaseLostError,
    Reason,
    SupersededError,
    TransientError,
    VideosieveError,
)
from pipeline.events import VideoEvent, VideoMessage
from pipeline.jpeg import encode_jpeg
from pipeline.media import ObjectRef
from pipeline.runs import Busy, Claimed, Commit, Settled
from pipeline.verdict import RunState
from workers.bootstrap import Services
from workers.counting import count_costs, count_outcome
from workers.fairness import tenant_of
from workers.flight import Flight
from workers.logs import get_logger
from workers.metrics import Metrics
from workers.policies import PolicyBook

_EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN}
"""Disk, memory, descriptors, processes."""


class Watch(Protocol):
    """Takes note of how videos fare: `workers.breakers.Breakers`."""

    def saw(self, error: VideosieveError) -> None: ...

    def worked(self, *, rejected: bool = False) -> None: ...


class Unwatched:
    """Nobody takes note."""

    def saw(self, error: VideosieveError) -> None:
        pass

    def worked(self, *, rejected: bool = False) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Screener:
    """Turns events into committed runs. Thread-safe; one instance serves all threads of a worker.

    With `has_vlm` there are judging workers, and what a policy's VLM can settle is escalated to them.
    """

    services: Services
    policies: PolicyBook
    extractor: Extractor
    models: Models
    metrics: Metrics
    worker: str
    artifacts_bucket: str
    lease_s: float
    watch: Watch = field(default_factory=Unwatched)
    has_vlm: bool = False

    def handle(self, event: VideoEvent, flight: Flight) -> Disposition:
        """Bring one event as far as it gets now, and say what becomes of its message.

        Raises FatalError only, with the run given back, when policy, models or settings are at fault.
        """
        with structlog.contextvars.bound_contextvars(video=event.ref.url, trace_id=event.trace_id):
            try:
                return self._screen(event, flight)
            except VideosieveError as error:
                return self._without_run(event, flight, error)
            except Exception as error:  # noqa: BLE001 - the message handler: a fault of ours must not end the worker
                get_logger().exception("screening_failed")
                return self._without_run(event, flight, machine_full(error))

    def _screen(self, event: VideoEvent, flight: Flight) -> Disposition:
        ref = self._resolved(event.ref)
        policy = self._policy_of(event)
        with self._spending("ledger"):
            claim = self.services.ledger.claim(
                ref,
                policy=policy.name,
                decision_hash=policy.decision_hash,
                lane=flight.lane,
                worker=self.worker,
                lease_s=self.lease_s,
                trace_id=event.trace_id or uuid4().hex,
                event_at=event.event_at,
            )
        self.metrics.claims.labels(result=type(claim).__name__.lower()).inc()
        match claim:
            case Settled():
                get_logger().info("duplicate_avoided", run_id=str(claim.run_id), state=claim.state.value)
                if claim.state is RunState.ESCALATED:  # whoever committed it may have died before sending it on
                    self._escalate(ref, policy, event.trace_id)
                return Disposition(Action.ACKNOWLEDGE)
            case Busy():
                return Disposition(Action.RETRY, delay_s=claim.lease_left_s)
            case Claimed():
                with (
                    structlog.contextvars.bound_contextvars(run_id=str(claim.run_id), trace_id=claim.trace_id),
                    flight.holding(claim),
                ):
                    return self._run(event, flight, ref, policy, claim)

    def _run(self, event: VideoEvent, flight: Flight, ref: ObjectRef, policy: Policy, claim: Claimed) -> Disposition:
        try:
            with self._timed("analyze"):
                source = self.services.objects.source(ref)
                try:
                    analysis = analyze(source, policy, self.extractor, self.models, has_vlm=self.has_vlm)
                finally:
                    self.metrics.stage_cpu.labels(stage="reads").inc(source.cpu_s)
            with self._timed("artifacts"):
                result_key = self._store(ref, policy, analysis, claim)
            with self._timed("commit"):
                commit = _commit_of(policy, analysis, result_key)
                self._commit(claim, commit)
            self._count(policy, analysis, commit)
            if analysis.outcome.state is RunState.ESCALATED:
                self._escalate(ref, policy, claim.trace_id)
            self.watch.worked()
            return Disposition(Action.ACKNOWLEDGE)
        except VideosieveError as error:
            return self._dispose(event, flight, claim, error)
        except Exception as error:  # noqa: BLE001 - as above; here the run is known, so the attempt is charged to it
            get_logger().exception("screening_failed")
            return self._dispose(event, flight, claim, machine_full(error))

    def _escalate(self, ref: ObjectRef, policy: Policy, trace_id: str | None) -> None:
        """Send the run on to the judging workers. Committed before: a message too many finds the run judged."""
        message = VideoMessage.of(ref, decision_hash=policy.decision_hash, trace_id=trace_id)
        self.services.queues.escalation.send(message.model_dump_json(exclude_none=True), group=tenant_of(ref.key))

    def _resolved(self, ref: ObjectRef) -> ObjectRef:
        """`ref` with its version and size; asks S3 only where the message did not carry them."""
        if ref.is_resolved and ref.size_bytes is not None:
            return ref
        found = self.services.objects.resolve(ref)
        if ref.version_id is None and ref.etag not in (None, found.etag):
            raise SupersededError(f"{ref.url} was replaced before it was looked at")
        return found

    def _policy_of(self, event: VideoEvent) -> Policy:
        """The policy that the message names, from the ledger; the active one where it names none."""
        return self.policies.active() if event.decision_hash is None else self.policies.named(event.decision_hash)

    def _store(self, ref: ObjectRef, policy: Policy, analysis: Analysis, claim: Claimed) -> str:
        """Write keyframes and result under keys of this run and fence; only the commit makes them the result."""
        prefix = f"runs/{claim.run_id}/{claim.fence}"
        put = self.services.objects.put
        keys = [f"{prefix}/keyframes/{index:03d}.jpg" for index in range(len(analysis.extraction.images))]
        for key, image in zip(keys, analysis.extraction.images, strict=True):
            with self._spending("jpeg"):
                picture = encode_jpeg(image)
            with self._spending("artifacts"):
                put(self.artifacts_bucket, key, picture, "image/jpeg")
        document = analysis_document(ref.url, policy, analysis, keys)
        document |= {"run_id": str(claim.run_id), "trace_id": claim.trace_id}
        result_key = f"{prefix}/result.json"
        with self._spending("artifacts"):
            put(self.artifacts_bucket, result_key, json.dumps(document).encode(), "application/json")
        return result_key

    def _commit(self, claim: Claimed, commit: Commit) -> None:
        with self._spending("ledger"):
            waited_s = self.services.ledger.commit(claim.run_id, claim.fence, commit)
        self.metrics.runs.labels(state=commit.state.value, reason=commit.reason.value if commit.reason else "").inc()
        if waited_s is not None and not commit.state.is_open:
            self.metrics.upload_to_decision.observe(waited_s)
        get_logger().info(
            "run_committed",
            state=commit.state.value,
            reason=commit.reason.value if commit.reason else None,
            upload_to_decision_s=waited_s,
            cpu_s=round(commit.cpu_s, 3),
        )

    def _dispose(self, event: VideoEvent, flight: Flight, claim: Claimed, error: VideosieveError | None) -> Disposition:
        """Record in the ledger what `error` means for the run."""
        decided = disposition(
            error,
            attempts=claim.attempts,
            faults=claim.faults,
            deliveries=flight.message.receive_count,
        )
        reason, detail = _words(error)
        self._note(decided, reason, detail)
        self._watched(decided, error)
        try:
            match decided.state:
                case None:
                    self.metrics.leases_lost.inc(isinstance(error, LeaseLostError))
                case RunState.QUEUED:
                    self.services.ledger.release(
                        claim.run_id,
                        claim.fence,
                        reason=reason,
                        detail=detail,
                        fault=decided.fault,
                        hidden_s=decided.delay_s,
                    )
                case state:
                    if decided.action is Action.DEAD_LETTER:
                        self._dead_letter(event, flight, reason, detail, run_id=str(claim.run_id))
                    self._commit(claim, Commit(state=state, reason=reason, detail=detail))
        except TransientError as later:  # the lease runs out by itself, and the message comes back
            get_logger().warning("disposition_failed", reason=later.reason.value, detail=later.detail)
            return Disposition(Action.RETRY, delay_s=self.lease_s)
        if isinstance(error, FatalError):
            raise error
        return _acknowledged(decided)

    def _without_run(self, event: VideoEvent, flight: Flight, error: VideosieveError | None) -> Disposition:
        """What becomes of an event that no run could be claimed for."""
        if isinstance(error, FatalError):
            raise error
        decided = disposition(error, attempts=1, faults=0, deliveries=flight.message.receive_count)
        reason, detail = _words(error)
        self._note(decided, reason, detail)
        self._watched(decided, error)
        if decided.action is Action.DEAD_LETTER:
            try:
                self._dead_letter(event, flight, reason, detail)
            except VideosieveError as later:
                get_logger().warning("disposition_failed", reason=later.reason.value, detail=later.detail)
                return Disposition(Action.RETRY, delay_s=self.lease_s)
        elif decided.action is Action.ACKNOWLEDGE:
            self.metrics.runs.labels(state=(decided.state or RunState.REJECTED).value, reason=reason.value).inc()
        return _acknowledged(decided)

    def _dead_letter(self, event: VideoEvent, flight: Flight, reason: Reason, detail: str, *, run_id: str = "") -> None:
        """Set one video of a message aside, with all that `videosieve dlq` needs to send it again."""
        body = VideoMessage.of(event.ref, decision_hash=event.decision_hash, trace_id=event.trace_id)
        self.services.queues.dead_letter.send(
            body.model_dump_json(exclude_none=True),
            {"reason": reason.value, "detail": detail[:256], "source": flight.queue.name, "run_id": run_id},
            group=flight.tenant,
        )

    def _watched(self, decided: Disposition, error: VideosieveError | None) -> None:
        if decided.state is RunState.REJECTED:
            self.watch.worked(rejected=True)
        else:
            self.watch.saw(
                error or TransientError(Reason.INTERNAL_ERROR, "an error of ours; the log has the traceback")
            )

    def _note(self, decided: Disposition, reason: Reason, detail: str) -> None:
        log = get_logger().info if decided.action is Action.ACKNOWLEDGE else get_logger().warning
        log("run_not_decided", action=decided.action.value, reason=reason.value, detail=detail)

    def _count(self, policy: Policy, analysis: Analysis, commit: Commit) -> None:
        metrics, cost = self.metrics, analysis.extraction.cost
        metrics.bytes_read.inc(cost.bytes_read)
        metrics.frames_decoded.inc(cost.frames_decoded)
        for keyframe in analysis.extraction.keyframes:
            metrics.keyframes.labels(reason=keyframe.reason.value).inc()
        count_costs(metrics, analysis.bill.currency, commit.costs)
        count_outcome(metrics, policy.name, analysis.outcome)

    @contextmanager
    def _spending(self, stage: str) -> Iterator[None]:
        """Count this thread's processor time of the `with` block."""
        start_s = time.thread_time()
        try:
            yield
        finally:
            self.metrics.stage_cpu.labels(stage=stage).inc(time.thread_time() - start_s)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        self.metrics.stage_wall.labels(step=step).observe(time.monotonic() - started_s)


def machine_full(error: Exception) -> TransientError | None:
    """What an unforeseen error means where this machine has run out of something; None for a fault in our code."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _EXHAUSTED):
        return TransientError(Reason.MACHINE_FULL, f"the worker's machine has run out of something: {error}")
    return None


def _commit_of(policy: Policy, analysis: Analysis, result_key: str) -> Commit:
    return Commit(
        state=analysis.outcome.state,
        outcome=analysis.outcome,
        result_key=result_key,
        currency=analysis.bill.currency,
        costs=stage_costs(policy, analysis.extraction, analysis.outcome),
        warnings=analysis.extraction.warnings,
        coverage=analysis.extraction.coverage,
    )


def _words(error: VideosieveError | None) -> tuple[Reason, str]:
    if error is None:
        return Reason.INTERNAL_ERROR, "an error of ours; the log has the traceback"
    return error.reason, error.detail


def _acknowledged(decided: Disposition) -> Disposition:
    """A dead-lettered event lies in the dead-letter queue by now, so its message can go."""
    return Disposition(Action.ACKNOWLEDGE) if decided.action is Action.DEAD_LETTER else decided
