"""What becomes of a video that did not come to its result: of its run in the ledger, and of its message.

Screening and judging end the same way; what an error means is `pipeline.disposition`'s to say.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Protocol

from pipeline.disposition import Action, Disposition, disposition
from pipeline.errors import FatalError, LeaseLostError, Reason, TransientError, VideosieveError
from pipeline.events import VideoEvent, VideoMessage
from pipeline.runs import Claimed, Commit
from pipeline.verdict import RunState
from workers.bootstrap import Services
from workers.counting import spending
from workers.flight import Flight
from workers.logs import get_logger
from workers.metrics import Metrics

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
class Ending:
    """Writes runs' ends down, and tells `watch` of the errors that decided them."""

    services: Services
    metrics: Metrics
    lease_s: float
    watch: Watch

    def commit(self, claim: Claimed, commit: Commit) -> None:
        """Make `commit` the run's outcome. Raises what `Ledger.commit` raises."""
        with spending(self.metrics, "ledger"):
            waited_s = self.services.ledger.commit(claim.run_id, claim.fence, commit)
        reason = commit.reason.value if commit.reason else None
        self.metrics.runs.labels(state=commit.state.value, reason=reason or "").inc()
        if waited_s is not None and not commit.state.is_open:
            self.metrics.upload_to_decision.observe(waited_s)
        get_logger().info(
            "run_committed",
            state=commit.state.value,
            reason=reason,
            upload_to_decision_s=waited_s,
            cpu_s=round(commit.cpu_s, 3),
        )

    def of_run(self, event: VideoEvent, flight: Flight, claim: Claimed, error: VideosieveError | None) -> Disposition:
        """Record in the ledger what `error` (None: a fault in our code) means for the run.

        Raises `error` where it is a FatalError, with the run given back.
        """
        decided = disposition(
            error, attempts=claim.attempts, faults=claim.faults, deliveries=flight.message.receive_count
        )
        reason, detail = self._note(decided, error)
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
                    self.commit(claim, Commit(state=state, reason=reason, detail=detail))
        except TransientError as later:  # the lease runs out by itself, and the message comes back
            return self._later(later)
        if isinstance(error, FatalError):
            raise error
        return _acknowledged(decided)

    def without_run(self, event: VideoEvent, flight: Flight, error: VideosieveError | None) -> Disposition:
        """What becomes of a message that no run could be claimed for. Raises `error` where it is a FatalError."""
        if isinstance(error, FatalError):
            raise error
        decided = disposition(error, attempts=1, faults=0, deliveries=flight.message.receive_count)
        reason, detail = self._note(decided, error)
        if decided.action is Action.DEAD_LETTER:
            try:
                self._dead_letter(event, flight, reason, detail)
            except VideosieveError as later:
                return self._later(later)
        elif decided.action is Action.ACKNOWLEDGE:
            self.metrics.runs.labels(state=(decided.state or RunState.REJECTED).value, reason=reason.value).inc()
        return _acknowledged(decided)

    def _note(self, decided: Disposition, error: VideosieveError | None) -> tuple[Reason, str]:
        error = error or TransientError(Reason.INTERNAL_ERROR, "an error of ours; the log has the traceback")
        log = get_logger().info if decided.action is Action.ACKNOWLEDGE else get_logger().warning
        log("run_not_decided", action=decided.action.value, reason=error.reason.value, detail=error.detail)
        if decided.state is RunState.REJECTED:
            self.watch.worked(rejected=True)
        else:
            self.watch.saw(error)
        return error.reason, error.detail

    def _later(self, error: VideosieveError) -> Disposition:
        get_logger().warning("disposition_failed", reason=error.reason.value, detail=error.detail)
        return Disposition(Action.RETRY, delay_s=self.lease_s)

    def _dead_letter(self, event: VideoEvent, flight: Flight, reason: Reason, detail: str, *, run_id: str = "") -> None:
        """Set one video of a message aside, with all that `videosieve dlq` needs to send it again."""
        body = VideoMessage.of(event.ref, decision_hash=event.decision_hash, trace_id=event.trace_id)
        self.services.queues.dead_letter.send(
            body.model_dump_json(exclude_none=True),
            {"reason": reason.value, "detail": detail[:256], "source": flight.queue.name, "run_id": run_id},
            group=flight.tenant,
        )


def machine_full(error: Exception) -> TransientError | None:
    """What an unforeseen error means where this machine has run out of something; None for a fault in our code."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _EXHAUSTED):
        return TransientError(Reason.MACHINE_FULL, f"the worker's machine has run out of something: {error}")
    return None


def _acknowledged(decided: Disposition) -> Disposition:
    """A dead-lettered video lies in the dead-letter queue by now, so its message can go."""
    return Disposition(Action.ACKNOWLEDGE) if decided.action is Action.DEAD_LETTER else decided
