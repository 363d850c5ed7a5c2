from __future__ import annotations

import cv2
import numpy as np
import pytest

from pipeline.video.compare import Picture, change, likeness
from pipeline.video.cuts import find_cuts
from pipeline.video.evidence import Evidence, Run, Wish
from pipeline.video.signals import signals
from tests.video.synthetic import evidence_of, index_of, picture


def test_an_irregular_key_between_different_pictures_is_a_cut() -> None:
    keys = [0, 250, 330, 580]
    sizes = [30_000 if sample in keys else 800 for sample in range(700)]
    evidence = evidence_of({0: picture(1), 250: picture(1), 330: picture(2), 580: picture(2)})
    (cut,) = find_cuts(signals(index_of(sizes, keys)), evidence).cuts
    assert cut.t_s == pytest.approx(11.0)
    assert cut.score > 0.4


def test_an_irregular_key_between_like_pictures_is_a_flash_not_a_cut() -> None:
    keys = [0, 250, 330, 580]
    sizes = [30_000 if sample in keys else 800 for sample in range(700)]
    evidence = evidence_of({key: picture(1) for key in keys})
    found = find_cuts(signals(index_of(sizes, keys)), evidence)
    assert found.cuts == ()
    assert found.wishes == ()


def phone_like(outlier: int | None, outlier_bytes: int = 27_000) -> tuple[list[int], list[int]]:
    generator = np.random.default_rng(0)
    sizes = [40_000 if sample % 30 == 0 else int(generator.integers(9_000, 11_000)) for sample in range(300)]
    if outlier is not None:
        sizes[outlier] = outlier_bytes
    return sizes, list(range(0, 300, 30))


def judged(answer: int) -> tuple[Evidence, list[float], list[Wish]]:
    """Cuts and wishes once the outlier at sample 137 was decoded and showed the scene `answer`."""
    sizes, keys = phone_like(137)
    found = signals(index_of(sizes, keys))
    evidence = evidence_of({key: picture(1 if key < 137 else 2) for key in keys})
    wishes = find_cuts(found, evidence).wishes
    run = Run((120, 137), is_patched=True)
    assert run in wishes
    evidence.add(run, {120: picture(1), 137: picture(answer)})
    after = find_cuts(found, evidence)
    return evidence, [cut.t_s for cut in after.cuts], list(after.wishes)


def test_one_sample_as_large_as_a_key_between_keys_that_differ_is_a_cut_without_a_look() -> None:
    sizes, keys = phone_like(137, 42_000)
    evidence = evidence_of({key: picture(1 if key < 137 else 2) for key in keys})
    found = find_cuts(signals(index_of(sizes, keys)), evidence)
    assert [cut.t_s for cut in found.cuts] == pytest.approx([137 / 30])
    assert found.wishes == ()


def test_a_passing_rise_of_sizes_between_keys_that_differ_is_looked_into_and_then_a_transition() -> None:
    keys = [0, 250, 500, 750]
    sizes = [30_000 if s in keys else 6_000 if 360 <= s < 390 else 900 for s in range(900)]
    found = signals(index_of(sizes, keys))
    evidence = evidence_of({key: picture(1 if key < 370 else 2) for key in keys})
    (wish,) = find_cuts(found, evidence).wishes
    assert isinstance(wish, Run)
    assert wish.key == 250
    assert all(355 <= sample <= 395 for sample in wish.samples[1:])
    evidence.add(wish, {250: picture(1)} | {sample: picture(2) for sample in wish.samples[1:]})
    (cut,) = find_cuts(found, evidence).cuts
    assert cut.is_gradual
    assert 12.0 <= cut.t_s <= 13.0


def test_a_change_of_exposure_or_a_shift_is_no_difference() -> None:
    one = picture(1)
    darker = Picture((one.thumbnail * 0.6).astype(np.uint8))
    assert change(one, darker).distance < 0.2
    textured = np.random.default_rng(1).integers(0, 255, (90, 200)).astype(np.uint8)
    textured = np.asarray(cv2.GaussianBlur(textured, (0, 0), 2), np.uint8)
    left, right = (Picture(np.ascontiguousarray(textured[:, at : at + 160])) for at in (0, 30))
    assert likeness(left, right) > 0.7
    assert abs(likeness(picture(1), picture(2))) < 0.5


def test_a_sample_that_replaces_the_picture_is_a_cut() -> None:
    _, cuts_s, wishes = judged(2)
    assert cuts_s == pytest.approx([137 / 30])
    assert wishes == []


def test_a_sample_that_leaves_the_picture_standing_is_none_at_its_place() -> None:
    _, cuts_s, _ = judged(1)
    assert all(abs(t_s - 137 / 30) > 0.3 for t_s in cuts_s)


def test_a_cut_on_a_regular_key_stands_out_from_its_neighbours() -> None:
    sizes, keys = phone_like(None)
    evidence = evidence_of({key: picture(1 if key < 150 else 2) for key in keys})
    found = find_cuts(signals(index_of(sizes, keys)), evidence)
    assert [cut.t_s for cut in found.cuts] == pytest.approx([5.0])


def test_distant_keys_that_differ_are_bisected() -> None:
    sizes, keys = phone_like(None)
    evidence = evidence_of({0: picture(1), 270: picture(2)})
    (wish,) = find_cuts(signals(index_of(sizes, keys)), evidence).wishes
    assert isinstance(wish, Run)
    assert wish.key in keys[1:-1]
    assert not wish.is_patched


def test_consecutive_samples_show_a_cut_where_there_are_no_keys() -> None:
    sizes = [30_000] + [900] * 899
    run = Run(tuple(range(0, 300, 1)))
    evidence = Evidence()
    evidence.add(run, {sample: picture(1 if sample < 100 else 2) for sample in run.samples})
    found = find_cuts(signals(index_of(sizes, [0])), evidence)
    assert [cut.t_s for cut in found.cuts] == pytest.approx([100 / 30])
