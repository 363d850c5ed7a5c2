"""Screens one video: claim → keyframes → cascade → artifacts → commit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import structlog

from pipeline.analyze import Analysis, Extractor, analyze
from pipeline.cascade.cost import stage_costs
from pipeline.cascade.policy import Policy
from pipeline.cascade.ports import Models
from pipeline.disposition import Action, Disposition
from pipeline.document import analysis_document
from pipeline.errors import SupersededError, VideosieveError
from pipeline.events import VideoEvent, VideoMessage
from pipeline.jpeg import encode_jpeg
from pipeline.media import ObjectRef
from pipeline.runs import Busy, Claimed, Commit, Settled
from pipeline.verdict import RunState
from workers.bootstrap import Services
from workers.counting import count_costs, count_outcome, spending
from workers.ending import Ending, Unwatched, Watch, machine_full
from workers.fairness import tenant_of
from workers.flight import Flight
from workers.logs import get_logger
from workers.metrics import Metrics
from workers.policies import PolicyBook


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
                return self._ending.without_run(event, flight, error)
            except Exception as error:  # noqa: BLE001 - the message handler: a fault of ours must not end the worker
                get_logger().exception("screening_failed")
                return self._ending.without_run(event, flight, machine_full(error))

    def _screen(self, event: VideoEvent, flight: Flight) -> Disposition:
        ref = self._resolved(event.ref)
        policy = self._policy_of(event)
        with spending(self.metrics, "ledger"):
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
                self._ending.commit(claim, commit)
            self._count(policy, analysis, commit)
            if analysis.outcome.state is RunState.ESCALATED:
                self._escalate(ref, policy, claim.trace_id)
            self.watch.worked()
            return Disposition(Action.ACKNOWLEDGE)
        except VideosieveError as error:
            return self._ending.of_run(event, flight, claim, error)
        except Exception as error:  # noqa: BLE001 - as above; here the run is known, so the attempt is charged to it
            get_logger().exception("screening_failed")
            return self._ending.of_run(event, flight, claim, machine_full(error))

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
            with spending(self.metrics, "jpeg"):
                picture = encode_jpeg(image)
            with spending(self.metrics, "artifacts"):
                put(self.artifacts_bucket, key, picture, "image/jpeg")
        document = analysis_document(ref.url, policy, analysis, keys)
        document |= {"run_id": str(claim.run_id), "trace_id": claim.trace_id}
        result_key = f"{prefix}/result.json"
        with spending(self.metrics, "artifacts"):
            put(self.artifacts_bucket, result_key, json.dumps(document).encode(), "application/json")
        return result_key

    @property
    def _ending(self) -> Ending:
        return Ending(self.services, self.metrics, self.lease_s, self.watch)

    def _count(self, policy: Policy, analysis: Analysis, commit: Commit) -> None:
        metrics, cost = self.metrics, analysis.extraction.cost
        metrics.bytes_read.inc(cost.bytes_read)
        metrics.frames_decoded.inc(cost.frames_decoded)
        for keyframe in analysis.extraction.keyframes:
            metrics.keyframes.labels(reason=keyframe.reason.value).inc()
        count_costs(metrics, analysis.bill.currency, commit.costs)
        count_outcome(metrics, policy.name, analysis.outcome)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        self.metrics.stage_wall.labels(step=step).observe(time.monotonic() - started_s)


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
