"""What happens to a message, and to its run, after an error. Pure: one function, tested as a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipeline.errors import (
    FatalError,
    LeaseLostError,
    PermanentError,
    Reason,
    SupersededError,
    TransientError,
    VideosieveError,
)
from pipeline.verdict import RunState

MAX_FAULTS = 2
"""A decoder that dies or hangs twice on the same video will do so again."""

MAX_ATTEMPTS = 5
"""Claims of one run that ended in an error of ours before it is given up and shown to a person."""

_VIDEO_FAULTS = {Reason.DECODE_TIMEOUT, Reason.DECODER_CRASHED}
_EVERYBODYS = {
    Reason.STORE_UNAVAILABLE,
    Reason.QUEUE_UNAVAILABLE,
    Reason.THROTTLED,
    Reason.DATABASE_UNAVAILABLE,
    Reason.MODEL_UNAVAILABLE,
    Reason.MACHINE_FULL,
    Reason.VLM_UNAVAILABLE,
    Reason.VLM_BUSY,
}
"""What the breakers stop all work for: the messages need not be put off for long too."""
_BACKOFF_FIRST_S = 5.0
_BACKOFF_MAX_S = 900.0
_OUTAGE_MAX_S = 60.0


class Action(StrEnum):
    """What becomes of the message."""

    ACKNOWLEDGE = "acknowledge"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Disposition:
    """`state` is what the run becomes, None where it is not ours to change; `fault` charges it to the video."""

    action: Action
    state: RunState | None = None
    delay_s: float = 0.0
    fault: bool = False


def backoff_s(attempt: int) -> float:
    """Exponential, from 5 s at the first attempt up to 15 minutes. The caller adds jitter."""
    return min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** min(max(0, attempt - 1), 16))


def disposition(error: VideosieveError | None, *, attempts: int, faults: int, deliveries: int = 1) -> Disposition:
    """What to do after `error` (None: an unforeseen exception, a fault in our code).

    `attempts` counts the claims of this run including this one, `faults` the earlier crashes and hangs that were
    charged to its video. `deliveries` counts how often the message came: an outage counts no attempt, but is waited
    for longer each time.
    """
    match error:
        case PermanentError(reason=Reason.UNKNOWN_MESSAGE | Reason.UNKNOWN_POLICY):
            return Disposition(Action.DEAD_LETTER, RunState.FAILED)
        case PermanentError():
            return Disposition(Action.ACKNOWLEDGE, RunState.REJECTED)
        case SupersededError():
            return Disposition(Action.ACKNOWLEDGE, RunState.SUPERSEDED)
        case LeaseLostError():
            return Disposition(Action.RETRY, None, backoff_s(1))
        case TransientError() if error.reason in _VIDEO_FAULTS:
            if faults + 1 >= MAX_FAULTS:
                return Disposition(Action.ACKNOWLEDGE, RunState.REJECTED, fault=True)
            return Disposition(Action.RETRY, RunState.QUEUED, backoff_s(1), fault=True)
        case TransientError():  # an outage rejects nobody's video, however long it lasts
            delay_s = backoff_s(deliveries)
            if error.reason in _EVERYBODYS:
                delay_s = min(_OUTAGE_MAX_S, delay_s)
            return Disposition(Action.RETRY, RunState.QUEUED, error.retry_after_s or delay_s)
        case FatalError():
            return Disposition(Action.STOP, RunState.QUEUED)
        case _:
            if attempts >= MAX_ATTEMPTS:
                return Disposition(Action.DEAD_LETTER, RunState.FAILED)
            return Disposition(Action.RETRY, RunState.QUEUED, backoff_s(attempts), fault=True)
