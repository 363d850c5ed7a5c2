"""One document as the page shows it. Pure but for the album's port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.document import Document
from pipeline.report.bars import Amount, Chart, log_chart
from pipeline.report.cards import Card, cards
from pipeline.report.decisions import Decision, decisions
from pipeline.report.money import money_text, times_text
from pipeline.report.pictures import Album
from pipeline.report.privacy import blurred_keyframes, sensitive_questions
from pipeline.report.reading import count, items, mapping, number, score, text
from pipeline.report.timeline import Timeline, timeline
from pipeline.report.totals import Money, Totals, cpu_s_of, state_of, totals
from pipeline.report.wording import STATES, bytes_text, clock, rejection_sentence, seconds_text, share_text, words


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a video got no result."""

    reason: str
    sentence: str
    detail: str


@dataclass(frozen=True, slots=True)
class VideoView:
    """One video. `number` counts from 1 in the order of the documents and names the section."""

    number: int
    name: str
    folder: str
    state: str
    state_text: str
    rejection: Rejection | None
    duration_s: float | None
    duration: str
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    coverage: float
    coverage_text: str
    timeline: Timeline
    cards: tuple[Card, ...]
    decisions: tuple[Decision, ...]
    sensitive: tuple[Decision, ...]
    cost: CostView | None
    total_nano: int

    @property
    def shown(self) -> tuple[Card, ...]:
        return tuple(card for card in self.cards if card.picture is not None)

    @property
    def has_blurred(self) -> bool:
        return any(card.is_blurred for card in self.cards)

    def decision(self, question: str) -> Decision | None:
        return next((decision for decision in self.decisions if decision.question == question), None)


@dataclass(frozen=True, slots=True)
class CostView:
    """What was paid, against what a VLM would have cost. `comparison` is a sentence's second half, or empty."""

    total: str
    machine: str
    review: str
    every_frame: str
    comparison: str
    machine_comparison: str
    chart: Chart


def video_view(document: Document, number_: int, album: Album, cards_limit: int) -> VideoView:
    """Everything that the page says about one document."""
    folder, name = _split(text(document.get("path")))
    state = state_of(document)
    sensitive = sensitive_questions(document)
    keyframes = [mapping(keyframe) for keyframe in items(document.get("keyframes"))]
    decided = decisions(document, sensitive, len(keyframes))
    duration_s = number(mapping(document.get("video")).get("duration_s"))
    coverage = number(document.get("coverage"))
    sums = totals([document])
    bill = next(iter(sums.money.items()), None)
    times_s = [number(keyframe.get("t_s")) or 0.0 for keyframe in keyframes]
    return VideoView(
        number=number_,
        name=name,
        folder=folder,
        state=state,
        state_text=STATES.get(state, words(state)),
        rejection=_rejection(document) if state == "rejected" else None,
        duration_s=duration_s,
        duration="–" if duration_s is None else clock(duration_s),
        facts=_facts(document, sums),
        warnings=tuple(text(warning) for warning in items(document.get("warnings"))),
        coverage=1.0 if coverage is None else score(coverage),
        coverage_text=share_text(1.0 if coverage is None else score(coverage), 1),
        timeline=timeline(document, duration_s, times_s),
        cards=cards(document, decided, blurred_keyframes(document), album, cards_limit),
        decisions=decided,
        sensitive=tuple(decision for decision in decided if decision.sensitive),
        cost=cost_view(*bill) if bill else None,
        total_nano=bill[1].total_nano if bill else 0,
    )


def cost_view(currency: str, money: Money) -> CostView:
    """Sums of money as text and as bars."""
    total, yardstick = money.total_nano, money.vlm_every_frame_nano
    machine = total - money.review_nano

    def amount(label: str, value: int, kind: str = "part", note: str = "") -> Amount:
        return Amount(label, value, money_text(value, currency), kind, note)

    rows = [
        amount("Keyframes", money.keyframes_nano),
        *(amount(f"Stage: {name}", value) for name, value in money.stages_nano.items()),
        amount("Review by people", money.review_nano),
        amount("Total", total, "total"),
        amount("VLM on every keyframe", money.vlm_every_keyframe_nano, "yardstick", _versus(total, money)[0]),
        amount("VLM on every frame", yardstick, "yardstick", _versus(total, money)[1]),
    ]
    return CostView(
        total=money_text(total, currency),
        machine=money_text(machine, currency),
        review=money_text(money.review_nano, currency) if money.review_nano else "",
        every_frame=money_text(yardstick, currency) if yardstick else "",
        comparison=_versus(total, money)[1],
        machine_comparison=times_text(yardstick, machine) if yardstick and machine > 0 else "",
        chart=log_chart(rows),
    )


def _versus(total_nano: int, money: Money) -> tuple[str, str]:
    """How the two yardsticks compare with the total; empty where nothing can be compared."""
    yardsticks = (money.vlm_every_keyframe_nano, money.vlm_every_frame_nano)
    keyframe, frame = (times_text(yard, total_nano) if yard and total_nano else "" for yard in yardsticks)
    return keyframe and f"{keyframe} the total", frame and f"{frame} the total"


def _split(path: str) -> tuple[str, str]:
    """(folder with its slash, file name)."""
    head, slash, name = path.rpartition("/")
    return (head + slash, name) if name else ("", path or "(without a name)")


def _rejection(document: Document) -> Rejection:
    rejected = mapping(document.get("rejected"))
    reason = text(rejected.get("reason")) or "unknown"
    return Rejection(reason, rejection_sentence(reason), text(rejected.get("detail")))


def _facts(document: Document, sums: Totals) -> tuple[tuple[str, str], ...]:
    """What is known of the file and of the work on it, as label and value; the unknown is left out."""
    video, cost = mapping(document.get("video")), mapping(document.get("cost"))
    width, height, rotation = (count(video.get(key)) for key in ("width_px", "height_px", "rotation_deg"))
    read, size, decoded = sums.bytes_read, sums.file_bytes, sums.frames_decoded
    turned = f", turned by {rotation}°" if rotation else ""
    facts = [
        ("Picture", f"{width} × {height}{turned}" if width and height else ""),
        ("Format", " in ".join(filter(None, (text(video.get("codec")), text(video.get("container")))))),
        ("Frames", f"{sums.frames:,}" if sums.frames else ""),
        ("Decoded", f"{decoded:,} ({share_text(decoded, sums.frames)})" if cost else ""),
        ("File", bytes_text(size) if size else ""),
        ("Read", f"{bytes_text(read)} ({share_text(read, size)})" if cost else ""),
        ("CPU time", seconds_text(cpu_s_of(document)) if cost else ""),
    ]
    return tuple((label, value) for label, value in facts if value)


def questions_of(videos: Sequence[VideoView]) -> tuple[str, ...]:
    """Every question that any of `videos` answers, in order of first appearance."""
    return tuple(dict.fromkeys(decision.question for video in videos for decision in video.decisions))
