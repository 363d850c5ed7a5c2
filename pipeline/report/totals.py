"""What a set of documents adds up to. Sums of money, bytes, frames and keyframes are exact. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.document import Document
from pipeline.report.reading import count, items, mapping, number, text, whole


@dataclass(slots=True)
class Money:
    """Sums in nano-units of one currency over `videos` videos that have a bill; `stages_nano` by stage."""

    videos: int = 0
    total_nano: int = 0
    keyframes_nano: int = 0
    stages_nano: dict[str, int] = field(default_factory=dict)
    review_nano: int = 0
    vlm_every_frame_nano: int = 0
    vlm_every_keyframe_nano: int = 0


@dataclass(slots=True)
class Totals:
    """`frames` and `file_bytes` are what the analysed videos hold; `looked_at` counts keyframes by stage."""

    videos: int = 0
    states: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    keyframes: int = 0
    frames: int = 0
    frames_decoded: int = 0
    bytes_read: int = 0
    file_bytes: int = 0
    cpu_s: float = 0.0
    looked_at: dict[str, int] = field(default_factory=dict)
    for_people: int = 0
    money: dict[str, Money] = field(default_factory=dict)

    @property
    def analysed(self) -> int:
        return self.videos - self.states["rejected"]


def state_of(document: Document) -> str:
    """The run's state; `rejected` and, where no question was asked, `keyframes` follow from the document."""
    if "rejected" in document:
        return "rejected"
    if "verdicts" not in document:
        return "keyframes"
    return text(document.get("state")) or "decided"


def cpu_s_of(document: Document) -> float:
    """CPU seconds of keyframes and stages."""
    spent = [number(mapping(document.get("cost")).get("cpu_s"))]
    spent += [number(mapping(stage).get("cpu_s")) for stage in items(document.get("stages"))]
    return math.fsum(seconds for seconds in spent if seconds is not None and 0 <= seconds < 1e15)


def totals(documents: Sequence[Document]) -> Totals:
    """Adds up `documents`."""
    sums = Totals(videos=len(documents))
    for document in documents:
        state = state_of(document)
        sums.states[state] += 1
        if state == "rejected":
            sums.rejected[text(mapping(document["rejected"]).get("reason")) or "unknown"] += 1
        else:
            _add_work(sums, document)
            _add_money(sums, document)
    return sums


def _add_work(sums: Totals, document: Document) -> None:
    cost = mapping(document.get("cost"))
    sums.keyframes += len(items(document.get("keyframes")))
    sums.frames += count(mapping(document.get("video")).get("frames"))
    sums.frames_decoded += count(cost.get("frames_decoded"))
    sums.bytes_read += count(cost.get("bytes_read"))
    sums.file_bytes += count(cost.get("file_bytes"))
    sums.cpu_s += cpu_s_of(document)
    for stage in map(mapping, items(document.get("stages"))):
        name = text(stage.get("stage"))
        shown = items(mapping(stage.get("vlm")).get("shown")) or items(stage.get("findings"))
        sums.looked_at[name] = sums.looked_at.get(name, 0) + len(shown)
    waiting = [mapping(v) for v in items(document.get("verdicts")) if mapping(v).get("answer") == "review"]
    sums.for_people += len({whole(index) for verdict in waiting for index in items(verdict.get("evidence"))})


def _add_money(sums: Totals, document: Document) -> None:
    bill = mapping(document.get("money"))
    if not bill:
        return
    money = sums.money.setdefault(text(bill.get("currency")) or "?", Money())
    money.videos += 1
    money.total_nano += count(bill.get("total_nano"))
    money.keyframes_nano += count(bill.get("keyframes_nano"))
    money.review_nano += count(bill.get("review_nano"))
    money.vlm_every_frame_nano += count(bill.get("vlm_every_frame_nano"))
    money.vlm_every_keyframe_nano += count(bill.get("vlm_every_keyframe_nano"))
    for stage in map(mapping, items(document.get("stages"))):
        name = text(stage.get("stage"))
        money.stages_nano[name] = money.stages_nano.get(name, 0) + count(stage.get("money_nano"))
