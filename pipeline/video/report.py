"""What a decoder child reports about a video, as plain JSON values, and the parent's distrustful reading. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pipeline.errors import PermanentError, Reason
from pipeline.media import Keyframe, KeyframeReason, VideoInfo
from pipeline.video.index import SampleIndex
from pipeline.video.limits import Limits

Json = Mapping[str, Any]
_MAX_WARNINGS = 32
_MAX_TEXT = 300
_MAX_EVENTS = 100_000
REJECTING = frozenset(
    (
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
    )
)


class ReportError(Exception):
    """A report that no honest child sends."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, without the pixels; see `pipeline.media.Extraction`."""

    video: VideoInfo
    cuts_s: tuple[float, ...]
    motion_s: tuple[tuple[float, float], ...]
    warnings: tuple[str, ...]
    coverage: float


@dataclass(frozen=True, slots=True)
class Probe:
    """What an index says. `streams`: kind and codec of each; `index`: "table" where the file has one that is read
    directly, else "packets"; `keys`: how many samples stand for themselves; `readable`: which share of all is there.
    """

    video: VideoInfo
    streams: tuple[str, ...]
    index: str
    keys: int
    readable: float
    warnings: tuple[str, ...]


def probe_json(index: SampleIndex) -> dict[str, Any]:
    return {
        **_video_json(index.video_info()),
        "streams": index.streams,
        "index": "packets" if index.payloads else "table",
        "keys": int(index.is_key.sum()),
        "readable": float(index.is_readable.mean()),
        "warnings": index.warnings,
    }


def read_probe(message: Json, limits: Limits) -> Probe:
    """The probe in `message`, every value checked. Raises ReportError."""
    return Probe(
        video=_read_video(message, limits),
        streams=tuple(text(stream, 64) for stream in sequence(message.get("streams"))[: limits.max_streams]),
        index=text(message.get("index"), 16),
        keys=integer(message.get("keys"), 0, limits.max_samples),
        readable=number(message.get("readable"), 0.0, 1.0),
        warnings=_warnings(message),
    )


def report_json(report: Report) -> dict[str, Any]:
    return {
        **_video_json(report.video),
        "cuts_s": report.cuts_s,
        "motion_s": report.motion_s,
        "warnings": report.warnings,
        "coverage": report.coverage,
    }


def read_report(message: Json, limits: Limits) -> Report:
    """The report in `message`, every value checked. Raises ReportError."""
    end_s = limits.max_duration_s
    return Report(
        video=_read_video(message, limits),
        cuts_s=tuple(number(t_s, 0.0, end_s) for t_s in sequence(message.get("cuts_s"))),
        motion_s=tuple(_span(span, end_s) for span in sequence(message.get("motion_s"))),
        warnings=_warnings(message),
        coverage=number(message.get("coverage"), 0.0, 1.0),
    )


def _video_json(video: VideoInfo) -> dict[str, Any]:
    return {
        "duration_s": video.duration_s,
        "width_px": video.width_px,
        "height_px": video.height_px,
        "rotation_deg": video.rotation_deg,
        "codec": video.codec,
        "container": video.container,
        "frames": video.frames,
        "time_base": [video.time_base.numerator, video.time_base.denominator],
    }


def _read_video(message: Json, limits: Limits) -> VideoInfo:
    width_px = integer(message.get("width_px"), 1, limits.max_pixels)
    height_px = integer(message.get("height_px"), 1, limits.max_pixels)
    if width_px * height_px > limits.max_pixels:
        raise ReportError("too many pixels")
    numerator, denominator = (integer(part, 1, 2**32 - 1) for part in sequence(message.get("time_base"), 2))
    return VideoInfo(
        duration_s=number(message.get("duration_s"), 0.0, limits.max_duration_s),
        width_px=width_px,
        height_px=height_px,
        rotation_deg=integer(message.get("rotation_deg"), 0, 270),
        codec=text(message.get("codec"), 32),
        container=text(message.get("container"), 32),
        frames=integer(message.get("frames"), 0, limits.max_samples),
        time_base=Fraction(numerator, denominator),
    )


def _warnings(message: Json) -> tuple[str, ...]:
    return tuple(text(warning) for warning in sequence(message.get("warnings"))[:_MAX_WARNINGS])


def keyframe_json(keyframe: Keyframe) -> dict[str, Any]:
    return {
        "t_s": keyframe.t_s,
        "pts": keyframe.pts,
        "reason": keyframe.reason.value,
        "score": keyframe.score,
    }


def read_keyframe(message: Json, limits: Limits) -> Keyframe:
    """Raises ReportError."""
    try:
        reason = KeyframeReason(text(message.get("reason")))
    except ValueError as error:
        raise ReportError("an unknown keyframe reason") from error
    return Keyframe(
        t_s=number(message.get("t_s"), 0.0, limits.max_duration_s),
        pts=integer(message.get("pts"), -(2**63), 2**63 - 1),
        reason=reason,
        score=number(message.get("score"), 0.0, 1.0),
    )


def read_rejection(message: Json) -> PermanentError:
    """The rejection in `message`; a reason that is none of a video's faults raises ReportError."""
    reason = message.get("reason")
    if reason not in REJECTING:
        raise ReportError("an unknown reason")
    return PermanentError(Reason(reason), text(message.get("detail")))


def integer(value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ReportError("an integer out of bounds")
    return value


def number(value: object, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ReportError("not a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise ReportError("a number out of bounds")
    return float(value)


def text(value: object, max_length: int = _MAX_TEXT) -> str:
    """Printable text, cut to `max_length` characters."""
    if not isinstance(value, str):
        raise ReportError("not text")
    return "".join(c if c.isprintable() else "?" for c in value[:max_length])


def sequence(value: object, length: int | None = None) -> Sequence[object]:
    if not isinstance(value, list) or len(value) > _MAX_EVENTS or (length is not None and len(value) != length):
        raise ReportError("not a list of the right length")
    return value


def _span(value: object, end_s: float) -> tuple[float, float]:
    start, end = sequence(value, 2)
    return number(start, 0.0, end_s), number(end, 0.0, end_s)
