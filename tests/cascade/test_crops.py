"""Crops from an earlier stage's detector as the input of a later one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cascade.cascade import load_scorer, run_cascade
from pipeline.cascade.crops import merged, views
from pipeline.cascade.policy import Policy
from pipeline.cascade.rules import CropPart
from pipeline.detections import Box, Detection, Findings, Scored
from pipeline.errors import Reason, UserError
from pipeline.media import BgrImage
from pipeline.verdict import Answer
from tests.cascade.fakes import FakeModels, document, rule, scripted, sha

CROP = CropPart(stage="detector", labels=("thing",), min_score=0.3, margin=0.0, most=2)


def picture(height_px: int = 100, width_px: int = 200) -> BgrImage:
    """Blue is the row, green the column."""
    rows, columns = np.mgrid[0:height_px, 0:width_px]
    return np.stack([rows, columns, np.zeros_like(rows)], axis=2).astype(np.uint8)


def thing(left: float, top: float, right: float, bottom: float, score: float = 0.9, label: str = "thing") -> Detection:
    return Detection(label, score, Box(left, top, right, bottom))


def crop(**changed: Any) -> CropPart:
    return CROP.model_copy(update=changed)


def boxes(part: CropPart | None, *found: Detection) -> list[tuple[float, ...] | None]:
    seen = views(picture(), part, Findings(found))
    return [(v.box.left_px, v.box.top_px, v.box.right_px, v.box.bottom_px) if v.box else None for v in seen]


def test_a_crop_holds_exactly_the_pixels_of_its_box() -> None:
    (view,) = views(picture(), CROP, Findings((thing(10, 20, 40, 60),)))
    assert view.image.shape == (40, 30, 3)
    assert view.image[0, 0].tolist() == [20, 10, 0]
    assert view.image[-1, -1].tolist() == [59, 39, 0]
    assert view.image.flags.c_contiguous


@pytest.mark.parametrize(
    ("part", "found", "expected"),
    [
        (crop(margin=0.5), [thing(50, 50, 70, 60)], [(40, 45, 80, 65)]),
        (crop(margin=2), [thing(0, 0, 200, 100)], [(0, 0, 200, 100)]),  # never beyond the picture
        (CROP, [thing(10.4, 10.6, 20.2, 20.8)], [(10, 10, 21, 21)]),  # never less than the box
        (CROP, [thing(0, 0, 9, 9, 0.5), thing(1, 1, 9, 9, 0.8), thing(2, 2, 9, 9, 0.6)], [(1, 1, 9, 9), (2, 2, 9, 9)]),
        (CROP, [thing(0, 0, 9, 9, 0.29)], [None]),
        (CROP, [thing(0, 0, 9, 9, label="other")], [None]),
        (CROP, [Detection("thing", 0.9)], [None]),  # a classifier points nowhere
        (CROP, [], [None]),
        (CROP, [thing(300, 10, 310, 20)], [None]),
        (CROP, [thing(math.nan, 10, 20, 20)], [None]),
        (None, [thing(0, 0, 9, 9)], [None]),
    ],
)
def test_what_is_cropped(part: CropPart | None, found: list[Detection], expected: list[Any]) -> None:
    assert boxes(part, *found) == expected


@given(
    st.tuples(*[st.floats(-50, 250)] * 4),
    st.floats(0, 2),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_no_box_makes_a_view_outside_the_picture_or_an_empty_one(
    corners: tuple[float, float, float, float], margin: float, height_px: int, width_px: int
) -> None:
    image = picture(height_px, width_px)
    for view in views(image, crop(margin=margin), Findings((thing(*corners),))):
        assert view.image.size > 0
        if view.box is not None:
            assert 0 <= view.box.left_px < view.box.right_px <= width_px
            assert 0 <= view.box.top_px < view.box.bottom_px <= height_px
            assert view.image.shape[:2] == (view.box.bottom_px - view.box.top_px, view.box.right_px - view.box.left_px)


def test_findings_on_crops_are_placed_in_the_keyframe_best_first() -> None:
    first, second = views(picture(), CROP, Findings((thing(10, 20, 40, 60), thing(100, 0, 120, 50, 0.8))))
    found = merged(
        [(first, Findings((Detection("bad", 0.4),))), (second, Findings((thing(1, 2, 3, 4, 0.7, "worse"),)))]
    )
    assert found.detections == (
        thing(101, 2, 103, 4, 0.7, "worse"),
        Detection("bad", 0.4, Box(10, 20, 40, 60)),
    )


@dataclass
class Looking:
    """A model that says `red` where a view is narrower than the picture, and keeps what it was shown."""

    weights_sha256: str
    labels: tuple[str, ...] = ("red",)
    batch_size: int = 1
    reading_sha256: str = "0" * 64
    shown: list[tuple[int, ...]] = field(default_factory=list)

    def score(self, images: Sequence[BgrImage]) -> Scored:
        self.shown += [image.shape[:2] for image in images]
        found = [Findings((Detection("red", 0.9 if image.shape[1] < 200 else 0.1),)) for image in images]
        return Scored(tuple(found), cpu_s=0.1 * len(images))


@dataclass
class Pointing:
    """A detector that finds `script[n]` on the n-th picture that it is shown."""

    script: Sequence[Sequence[Detection]]
    weights_sha256: str = sha("detector")
    labels: tuple[str, ...] = ("thing",)
    batch_size: int = 1
    reading_sha256: str = "0" * 64
    calls: int = 0

    def score(self, images: Sequence[BgrImage]) -> Scored:
        first, self.calls = self.calls, self.calls + len(images)
        return Scored(tuple(Findings(tuple(self.script[first + n])) for n in range(len(images))), cpu_s=0.1)


def cropping(labels: str = "thing") -> Policy:
    text = document({"detector": {"q": rule("x", 1.0, 0.1)}, "mid": {"q": rule("x", 0.8, 0.2)}})
    detector, mid = text["decision"]["stages"]
    detector["answers"]["q"]["labels"] = ["thing"]
    mid["answers"]["q"]["labels"] = ["red"]
    mid["crop"] = {"stage": "detector", "labels": [labels], "margin": 0.0, "min_score": 0.3}
    return Policy.model_validate(text)


def test_the_mid_tier_sees_crops_of_what_the_detector_found_and_whole_keyframes_where_it_was_unsure_where() -> None:
    mid = Looking(sha("mid"))
    found = [[thing(0, 0, 50, 50, 0.5), thing(50, 50, 90, 90, 0.4)], [thing(0, 0, 9, 9, 0.2)], []]
    models = FakeModels(detector=Pointing(found), mid=mid)  # type: ignore[arg-type]
    outcome = run_cascade(cropping(), [picture()] * 3, models)
    assert mid.shown == [(50, 50), (40, 40)]  # the first keyframe's crops settle it; the third was never in doubt
    (verdict,) = outcome.verdicts
    assert (verdict.answer, verdict.evidence, verdict.stage) == (Answer.POSITIVE, (0,), "mid")
    record = outcome.stages[1]
    assert record.images == 2
    assert record.cpu_s == pytest.approx(0.2)
    assert [d.box for d in record.findings[0].detections] == [Box(0, 0, 50, 50), Box(50, 50, 90, 90)]


def test_where_nothing_could_be_cropped_the_whole_keyframe_is_judged() -> None:
    mid = Looking(sha("mid"))
    models = FakeModels(detector=Pointing([[thing(0, 0, 9, 9, 0.2)]]), mid=mid)  # type: ignore[arg-type]
    outcome = run_cascade(cropping(), [picture()], models)
    assert mid.shown == [(100, 200)]
    assert outcome.verdicts[0].answer is Answer.NEGATIVE


def test_a_label_to_crop_that_the_detector_lacks_is_a_fault_of_the_policy() -> None:
    asked = cropping("thong")
    models = FakeModels(detector=scripted("detector", labels=["thing"]), mid=scripted("mid", labels=["red"]))
    with pytest.raises(UserError, match="crop: model detector has no label thong; it has thing") as caught:
        load_scorer(models, asked.decision.stages[1], asked)
    assert caught.value.reason is Reason.BAD_POLICY
