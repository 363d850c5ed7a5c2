"""Keyframes as cards: picture, boxes, reason, and what they are evidence of. Pure but for the album's port."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.document import Document
from pipeline.report.decisions import Decision
from pipeline.report.pictures import Album, Picture
from pipeline.report.reading import items, mapping, number, score, text, whole
from pipeline.report.wording import KEYFRAME_REASONS, clock, words

MIN_SCORE = 0.25
"""Detections below are left out: a detector's guesses would bury what it saw."""

_MAX_DETECTIONS = 12  # per picture
_CHAR_WIDTH = 0.68  # of a bold capital, in font sizes
_DEFAULT_SIZE_PX = (1280, 720)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A label with its score; `box` is (left, top, width, height) in pixels of `Card.size_px`, None for the whole."""

    label: str
    score: float
    stage: str
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One keyframe. `index` counts from 0, as in documents; people read `number`, which counts from 1."""

    index: int
    t_s: float
    time: str
    reason: str
    score: float
    size_px: tuple[int, int]
    picture: Picture | None
    boxes: tuple[Sighting, ...]
    labels: tuple[Sighting, ...]
    evidence: tuple[Decision, ...]
    blurred_for: tuple[str, ...]

    @property
    def number(self) -> int:
        return self.index + 1

    @property
    def is_blurred(self) -> bool:
        """Whether there is a picture that must not be shown unasked."""
        return bool(self.blurred_for and self.picture and self.picture.uri)

    @property
    def reason_text(self) -> str:
        return KEYFRAME_REASONS.get(self.reason, words(self.reason)) or "unknown reason"

    @property
    def shape(self) -> str:
        """The name of the mark that stands for the reason."""
        return self.reason if self.reason in KEYFRAME_REASONS else "other"

    @property
    def width_px(self) -> int:
        return self.size_px[0]

    @property
    def height_px(self) -> int:
        return self.size_px[1]

    @property
    def font_px(self) -> float:
        """The overlay's font size, in pixels of the keyframe: readable when the card is some 300 px wide."""
        return round(max(self.width_px, self.height_px * 0.75) * 0.042, 1)

    def label_at(self, sighting: Sighting) -> tuple[float, float]:
        """Where a box's label begins: above its left corner, or as near as it fits into the picture."""
        left, top = sighting.box[:2] if sighting.box else (0.0, 0.0)
        width_px = (len(sighting.label) + 5) * self.font_px * _CHAR_WIDTH
        x = max(0.0, min(left, self.width_px - width_px))
        return round(x, 1), round(max(top - self.font_px * 0.35, self.font_px), 1)


def cards(
    document: Document,
    decided: Sequence[Decision],
    blurred: Mapping[int, tuple[str, ...]],
    album: Album,
    limit: int,
) -> tuple[Card, ...]:
    """A card per keyframe; beyond `limit`, those that are no evidence of a positive or doubtful answer lose theirs.

    A keyframe without a card has `picture` None.
    """
    keyframes = [mapping(keyframe) for keyframe in items(document.get("keyframes"))]
    sightings = _sightings(document)
    shown = _shown(len(keyframes), decided, limit)
    made: list[Card] = []
    for index, keyframe in enumerate(keyframes):
        size_px = _size_px(keyframe)
        image = keyframe.get("image")
        t_s = number(keyframe.get("t_s")) or 0.0
        seen = sightings.get(index, []) if index in shown else []
        made.append(
            Card(
                index=index,
                t_s=t_s,
                time=clock(t_s),
                reason=text(keyframe.get("reason")),
                score=score(keyframe.get("score")),
                size_px=size_px,
                picture=album.picture(image if isinstance(image, str) else None, size_px) if index in shown else None,
                boxes=tuple(sighting for sighting in seen if sighting.box is not None),
                labels=tuple(seen),
                evidence=tuple(d for d in decided if d.answer != "negative" and index in d.evidence),
                blurred_for=blurred.get(index, ()),
            )
        )
    return tuple(made)


def _shown(keyframes: int, decided: Sequence[Decision], limit: int) -> set[int]:
    """Evidence first, then keyframes spread evenly over the video."""
    if keyframes <= limit:
        return set(range(keyframes))
    evidence = [i for decision in decided if decision.answer != "negative" for i in decision.evidence]
    spread = [keyframes * i // limit for i in range(limit)]
    return set(list(dict.fromkeys([*evidence, *spread]))[:limit])


def _size_px(keyframe: Document) -> tuple[int, int]:
    sides = [whole(side) for side in items(keyframe.get("size_px"))]
    if len(sides) != 2 or not all(side and 0 < side <= 65_535 for side in sides):
        return _DEFAULT_SIZE_PX
    return (sides[0] or 1, sides[1] or 1)


def _sightings(document: Document) -> dict[int, list[Sighting]]:
    """Keyframe index → what any stage saw there with at least `MIN_SCORE`, best first."""
    seen: dict[int, list[Sighting]] = {}
    for stage in map(mapping, items(document.get("stages"))):
        for finding in map(mapping, items(stage.get("findings"))):
            index = whole(finding.get("keyframe"))
            if index is None:
                continue
            for detection in map(mapping, items(finding.get("detections"))):
                value = score(detection.get("score"))
                if value >= MIN_SCORE:
                    label, box = text(detection.get("label")), _box(detection.get("box_px"))
                    seen.setdefault(index, []).append(Sighting(label, value, text(stage.get("stage")), box))
    return {i: sorted(found, key=lambda s: -s.score)[:_MAX_DETECTIONS] for i, found in seen.items()}


def _box(value: object) -> tuple[float, float, float, float] | None:
    corners = [number(corner) for corner in items(value)]
    if len(corners) != 4:
        return None
    left, top, right, bottom = (math.nan if c is None else min(max(c, -1e5), 1e5) for c in corners)
    if not (right > left and bottom > top):
        return None
    return round(left, 1), round(top, 1), round(right - left, 1), round(bottom - top, 1)
