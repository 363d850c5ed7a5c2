"""The error tree, and the stable reasons that logs, metrics, the ledger and the docs share.

    VideosieveError
    ├── PermanentError    the video's or message's own fault: record it, acknowledge, never retry
    ├── SupersededError   the object was replaced while we worked: this version's run ends
    ├── TransientError    try again later
    │   └── LeaseLostError  another worker owns the run now: drop the work, touch nothing
    ├── AnswerError       a VLM's answer, or our question to it, is no use: a person answers (`pipeline.chat`)
    └── FatalError        our own set-up is wrong: give messages back, say what to do, exit

Foreign exceptions are translated into these where the foreign library is called, nowhere else.
What happens to a message after an error is decided in `pipeline.disposition`.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why something did not work. The value is the word used in logs, metrics, ledger and docs."""

    # the video's fault, permanent
    EMPTY_FILE = "empty_file"
    NOT_A_VIDEO = "not_a_video"
    NO_VIDEO_STREAM = "no_video_stream"
    UNSUPPORTED_CODEC = "unsupported_codec"
    NO_FRAMES = "no_frames"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    TOO_LARGE = "too_large"
    TOO_LONG = "too_long"
    TOO_MANY_PIXELS = "too_many_pixels"
    # the video's fault as it seems: transient at first, permanent on the second
    DECODE_TIMEOUT = "decode_timeout"
    DECODER_CRASHED = "decoder_crashed"
    # about the object or the message
    NOT_FOUND = "not_found"
    SUPERSEDED = "superseded"
    UNKNOWN_MESSAGE = "unknown_message"
    UNKNOWN_POLICY = "unknown_policy"
    # a dependency's fault, transient: rejects nobody's video
    FORBIDDEN = "forbidden"
    STORE_UNAVAILABLE = "store_unavailable"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    THROTTLED = "throttled"
    DATABASE_UNAVAILABLE = "database_unavailable"
    MODEL_UNAVAILABLE = "model_unavailable"
    VLM_UNAVAILABLE = "vlm_unavailable"
    VLM_BUSY = "vlm_busy"
    MACHINE_FULL = "machine_full"
    LEASE_LOST = "lease_lost"
    GIVEN_BACK = "given_back"
    INTERNAL_ERROR = "internal_error"
    # our set-up's fault, fatal
    BAD_SETTING = "bad_setting"
    BAD_POLICY = "bad_policy"
    BAD_INPUT = "bad_input"
    WEIGHTS_MISSING = "weights_missing"
    WEIGHTS_ALTERED = "weights_altered"
    BAD_MODEL = "bad_model"
    DEVICE_UNAVAILABLE = "device_unavailable"
    SCHEMA_OUTDATED = "schema_outdated"
    MISSING_DEPENDENCY = "missing_dependency"
    # why a question goes to a person
    UNDECIDED = "undecided"
    NO_VLM = "no_vlm"
    LOW_COVERAGE = "low_coverage"
    BUDGET_EXHAUSTED = "budget_exhausted"
    VLM_INVALID_OUTPUT = "vlm_invalid_output"
    VLM_BLOCKED = "vlm_blocked"
    VLM_REQUEST_REFUSED = "vlm_request_refused"
    VLM_DISAGREES = "vlm_disagrees"


class VideosieveError(Exception):
    """An error with a stable `reason` and a `detail` sentence that says what was wrong and what to do."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class PermanentError(VideosieveError):
    """The video (or message) itself is at fault; trying again cannot help."""


class SupersededError(VideosieveError):
    """The object that the run is about was replaced or deleted while it ran."""

    def __init__(self, detail: str) -> None:
        super().__init__(Reason.SUPERSEDED, detail)


class TransientError(VideosieveError):
    """Trying again later may help; `retry_after_s` is the other side's own wish, where it told us."""

    def __init__(self, reason: Reason, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason, detail)
        self.retry_after_s = retry_after_s


class LeaseLostError(TransientError):
    """The run's lease ran out or was taken over: nothing of this attempt may be written."""

    def __init__(self, detail: str) -> None:
        super().__init__(Reason.LEASE_LOST, detail)


class FatalError(VideosieveError):
    """Our own configuration is at fault. Commands print `detail` as one line and exit with `exit_code`."""

    def __init__(self, reason: Reason, detail: str, *, exit_code: int = 1) -> None:
        super().__init__(reason, detail)
        self.exit_code = exit_code


class UserError(FatalError):
    """What the caller typed or configured is at fault: exit code 2."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail, exit_code=2)
