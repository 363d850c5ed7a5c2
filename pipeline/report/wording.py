"""Numbers, states and reasons as people read them. Pure."""

from __future__ import annotations

from pipeline.advice import advice

REVIEW_REASONS = {
    "undecided": "no stage was sure enough",
    "no_vlm": "no vision-language model is configured",
    "budget_exhausted": "the budget for the vision-language model is spent",
    "low_coverage": "too little of the video could be seen for a negative answer",
    "vlm_invalid_output": "the vision-language model gave no usable answer",
    "vlm_blocked": "the vision-language model refused to answer",
    "vlm_request_refused": "the vision-language model's engine refused the request",
    "vlm_disagrees": "the vision-language model contradicts an earlier stage that was nearly sure",
}
KEYFRAME_REASONS = {
    "start": "start",
    "scene_cut": "scene cut",
    "motion": "motion",
    "coverage": "coverage",
}
STATES = {
    "decided": "decided",
    "in_review": "waiting for a person",
    "rejected": "rejected",
    "keyframes": "keyframes only",
}


def words(name: str) -> str:
    """A name out of a document as words: `exposed_nudity` → `exposed nudity`."""
    return name.replace("_", " ")


def rejection_sentence(reason: str) -> str:
    """What a rejection reason means, and what its sender can do, as one sentence."""
    return advice(reason) or "The file could not be analysed."


def clock(t_s: float) -> str:
    """A time in a video: `0:12.4`, `1:02:03.0`."""
    if abs(t_s) >= 1e9:
        return f"{t_s:.0e} s"
    tenths = round(abs(t_s) * 10)
    minutes, seconds = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    sign = "−" if t_s < 0 and tenths else ""
    head = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{sign}{head}:{seconds // 10:02d}.{seconds % 10}"


def bytes_text(size_bytes: int) -> str:
    """A size in decimal units: `12.4 MB`."""
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("the last unit takes every size")


def seconds_text(duration_s: float) -> str:
    """A cost in seconds: `0.042 s`, `12.3 s`, `1,234 s`."""
    if duration_s >= 1e12:
        return f"{duration_s:.0e} s"
    decimals = 0 if duration_s >= 100 else 1 if duration_s >= 10 else 2 if duration_s >= 1 else 3
    return f"{duration_s:,.{decimals}f} s"


def share_text(part: float, total: float) -> str:
    """`part` of `total` in percent; `–` where the total is nothing."""
    if total <= 0:
        return "–"
    percent = 100.0 * part / total
    if 0 < percent < 0.1:
        return "under 0.1%"
    return f"{percent:.1f}%" if percent < 10 else f"{percent:,.0f}%"


def plural(count: int, singular: str, several: str | None = None) -> str:
    """`1 video`, `2,000 videos`."""
    return f"{count:,} {singular if count == 1 else several or singular + 's'}"
