from __future__ import annotations

import itertools

import pytest

from pipeline.disposition import MAX_ATTEMPTS, MAX_FAULTS, Action, Disposition, backoff_s, disposition
from pipeline.errors import (
    FatalError,
    LeaseLostError,
    PermanentError,
    Reason,
    SupersededError,
    TransientError,
    UserError,
    VideosieveError,
)
from pipeline.verdict import RunState

VIDEO_FAULTS = (
    Reason.EMPTY_FILE,
    Reason.NOT_A_VIDEO,
    Reason.NO_VIDEO_STREAM,
    Reason.UNSUPPORTED_CODEC,
    Reason.NO_FRAMES,
    Reason.TRUNCATED,
    Reason.CORRUPT,
    Reason.TOO_LARGE,
    Reason.TOO_LONG,
    Reason.TOO_MANY_PIXELS,
    Reason.NOT_FOUND,
)
OUTAGES = (
    Reason.FORBIDDEN,
    Reason.STORE_UNAVAILABLE,
    Reason.QUEUE_UNAVAILABLE,
    Reason.THROTTLED,
    Reason.DATABASE_UNAVAILABLE,
    Reason.MODEL_UNAVAILABLE,
)
REJECT = Disposition(Action.ACKNOWLEDGE, RunState.REJECTED)
DEAD = Disposition(Action.DEAD_LETTER, RunState.FAILED)


def retry(delay_s: float, state: RunState | None = RunState.QUEUED, *, fault: bool = False) -> Disposition:
    return Disposition(Action.RETRY, state, delay_s, fault)


Row = tuple[VideosieveError | None, int, int, Disposition]
TABLE: list[Row] = [
    # what went wrong, attempts, faults before, what happens
    *((PermanentError(reason, "x"), attempts, 0, REJECT) for reason in VIDEO_FAULTS for attempts in (1, 99)),
    (PermanentError(Reason.UNKNOWN_MESSAGE, "x"), 1, 0, DEAD),
    (PermanentError(Reason.UNKNOWN_POLICY, "x"), 1, 0, DEAD),
    (SupersededError("x"), 1, 0, Disposition(Action.ACKNOWLEDGE, RunState.SUPERSEDED)),
    (SupersededError("x"), 99, 1, Disposition(Action.ACKNOWLEDGE, RunState.SUPERSEDED)),
    (LeaseLostError("x"), 1, 0, retry(5, None)),
    (LeaseLostError("x"), 99, 9, retry(5, None)),
    (TransientError(Reason.DECODE_TIMEOUT, "x"), 1, 0, retry(5, fault=True)),
    (TransientError(Reason.DECODER_CRASHED, "x"), 99, 0, retry(5, fault=True)),
    (TransientError(Reason.DECODE_TIMEOUT, "x"), 2, 1, Disposition(Action.ACKNOWLEDGE, RunState.REJECTED, fault=True)),
    (TransientError(Reason.DECODER_CRASHED, "x"), 1, 7, Disposition(Action.ACKNOWLEDGE, RunState.REJECTED, fault=True)),
    (TransientError(Reason.STORE_UNAVAILABLE, "x"), 1, 0, retry(5)),
    (TransientError(Reason.STORE_UNAVAILABLE, "x"), 3, 9, retry(5)),
    (TransientError(Reason.THROTTLED, "x", retry_after_s=77.5), 9, 0, retry(77.5)),
    (TransientError(Reason.THROTTLED, "x", retry_after_s=0), 2, 0, retry(5)),
    (FatalError(Reason.WEIGHTS_MISSING, "x"), 99, 9, Disposition(Action.STOP, RunState.QUEUED)),
    (UserError(Reason.BAD_SETTING, "x"), 1, 0, Disposition(Action.STOP, RunState.QUEUED)),
    (None, 1, 0, retry(5, fault=True)),
    (None, MAX_ATTEMPTS - 1, 0, retry(40, fault=True)),
    (None, MAX_ATTEMPTS, 0, DEAD),
    (None, MAX_ATTEMPTS + 1, 0, DEAD),
]


@pytest.mark.parametrize(("error", "attempts", "faults", "expected"), TABLE)
def test_what_happens_after_an_error(
    error: VideosieveError | None, attempts: int, faults: int, expected: Disposition
) -> None:
    assert disposition(error, attempts=attempts, faults=faults) == expected


def test_an_outage_is_waited_for_longer_with_each_delivery_though_no_attempt_is_counted() -> None:
    outage = TransientError(Reason.STORE_UNAVAILABLE, "x")
    delays_s = [disposition(outage, attempts=1, faults=0, deliveries=n).delay_s for n in (1, 2, 3, 20)]
    assert delays_s == [5, 10, 20, 60]
    refused = TransientError(Reason.FORBIDDEN, "one object's own key")
    assert disposition(refused, attempts=1, faults=0, deliveries=20).delay_s == 900


@pytest.mark.parametrize("reason", OUTAGES)
def test_an_outage_rejects_and_dead_letters_nobody_however_long_it_lasts(reason: Reason) -> None:
    for attempts, faults in itertools.product((0, 1, 5, 100, 10**9), (0, 1, 100)):
        found = disposition(TransientError(reason, "x"), attempts=attempts, faults=faults)
        assert (found.action, found.state, found.fault) == (Action.RETRY, RunState.QUEUED, False)
        assert 0 < found.delay_s <= 900


def test_every_reason_raised_as_a_transient_error_is_retried_at_first() -> None:
    for reason in Reason:
        assert disposition(TransientError(reason, "x"), attempts=1, faults=0).action is Action.RETRY


def test_a_video_that_fells_the_decoder_is_rejected_at_the_second_fault() -> None:
    found = [disposition(TransientError(Reason.DECODER_CRASHED, "x"), attempts=1, faults=n) for n in range(MAX_FAULTS)]
    assert [one.action for one in found] == [Action.RETRY] * (MAX_FAULTS - 1) + [Action.ACKNOWLEDGE]
    assert all(one.fault for one in found)


def test_backing_off_doubles_from_five_seconds_to_a_quarter_of_an_hour() -> None:
    assert [backoff_s(attempt) for attempt in (1, 2, 3, 8, 9, 10**9)] == [5, 10, 20, 640, 900, 900]
    assert [backoff_s(attempt) for attempt in (0, -5)] == [5, 5]
