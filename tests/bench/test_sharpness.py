from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from pipeline.media import BgrImage
from pipeline.video.sandbox import DecoderPool
from pipeline.video.synthesis import write_clip
from tests import clips
from tests.bench.scoring import Truth
from tests.bench.sharpness import Checked, check, luma_of, sharpness, shots


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(1) as opened:
        yield opened


def grained(seed: int) -> BgrImage:
    grain = np.random.default_rng(seed).normal(0, 25, (180, 320, 1))
    return np.asarray(np.clip(clips.scene(seed) + grain, 0, 255), np.uint8)


def truth(duration_s: float, cuts_s: tuple[float, ...]) -> Truth:
    return Truth("web", duration_s, cuts_s, (), (), ())


def test_a_blurred_picture_is_less_sharp_and_a_black_one_counts_only_beside_a_brighter_one() -> None:
    image = grained(1)
    blurred = np.asarray(cv2.GaussianBlur(image, (0, 0), 3), np.uint8)
    assert sharpness(luma_of(blurred)) < 0.2 * sharpness(luma_of(image))
    assert Checked("a", 0.0, "start", 1.0, luma=5.0, best_luma=80.0).is_bad
    assert not Checked("a", 0.0, "start", 1.0, luma=5.0, best_luma=6.0).is_bad
    assert Checked("a", 0.0, "start", 0.3, luma=80.0, best_luma=80.0).is_bad


def test_shots_leave_transitions_out() -> None:
    joined = Truth("web", 20.0, (5.0,), (("dissolve", 10.0, 11.0),), (), ())
    assert shots(joined) == [(0.0, 5.0), (5.0, 10.0), (11.0, 20.0)]


@pytest.mark.parametrize("start", ["black", "blurred"])
def test_a_shot_that_starts_black_or_blurred_is_shown_by_a_sharp_frame(
    pool: DecoderPool, tmp_path: Path, start: str
) -> None:
    sharp, other = grained(21), grained(22)
    hidden = np.zeros_like(sharp) if start == "black" else np.asarray(cv2.GaussianBlur(sharp, (0, 0), 6), np.uint8)
    frames = [hidden] * 18 + [sharp] * 102 + [other] * 90
    path = tmp_path / "a.mp4"
    write_clip(path, frames, 30, options={"preset": "veryfast", "g": "15"})
    found = list(check(pool, path, truth(7.0, (4.0,))))
    assert len(found) >= 1
    assert not [one for one in found if one.is_bad]
