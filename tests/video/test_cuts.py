from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from pipeline.video.compare import Picture, change, likeness
from pipeline.video.cuts import find_cuts
from pipeline.video.evidence import Evidence, Look, Run, Wish
from pipeline.video.glance import Glance
from pipeline.video.signals import Signals, signals
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


def judged(answer: int) -> tuple[list[float], list[Wish]]:
    """Cuts and wishes once the outlier at sample 137 was decoded and showed the scene `answer`."""
    sizes, keys = phone_like(137)
    found = signals(index_of(sizes, keys))
    evidence = evidence_of({key: picture(1 if key < 137 else 2) for key in keys})
    wishes = find_cuts(found, evidence).wishes
    run = Run((120, 137), is_patched=True)
    assert run in wishes
    evidence.add(run, {120: picture(1), 137: picture(answer)})
    after = find_cuts(found, evidence)
    return [cut.t_s for cut in after.cuts], list(after.wishes)


def test_one_sample_as_large_as_a_key_between_keys_that_differ_is_a_cut_without_a_look() -> None:
    sizes, keys = phone_like(137, 42_000)
    evidence = evidence_of({key: picture(1 if key < 137 else 2) for key in keys})
    found = find_cuts(signals(index_of(sizes, keys)), evidence)
    assert [cut.t_s for cut in found.cuts] == pytest.approx([137 / 30])
    assert found.wishes == ()


def blended(codec: str) -> tuple[Signals, Evidence]:
    """Keys that differ, and between them samples that grow for a second as those of a dissolve do."""
    generator = np.random.default_rng(2)
    sizes = [int(900 * generator.uniform(0.8, 1.25)) for _ in range(900)]
    keys = [0, 250, 500, 750]
    for sample in range(360, 390):
        sizes[sample] *= 12
    for key in keys:
        sizes[key] = 30_000
    found = signals(index_of(sizes, keys, codec=codec))
    return found, evidence_of({key: picture(1 if key < 370 else 2) for key in keys})


def test_a_blend_of_long_gops_is_looked_into_and_believed_when_little_of_it_was_predicted() -> None:
    found, evidence = blended("h264")
    (place,) = found.blends
    unsure = replace(found, blends=(replace(place, likelihood=0.6),))
    wishes = find_cuts(unsure, evidence).wishes
    assert all(isinstance(wish, Look) and 355 <= wish.sample <= 395 for wish in wishes)
    for intra, count in ((0.7, 1), (0.02, 0)):
        for wish in wishes:
            assert isinstance(wish, Look)
            evidence.add_glance(wish, Glance(intra, 0.0, 0.0, 1.0))
        cuts = find_cuts(unsure, evidence, is_final=True).cuts
        assert len(cuts) == count
        assert all(cut.is_gradual and 12.0 <= cut.t_s <= 13.0 for cut in cuts)


def test_where_nothing_can_be_glanced_at_sizes_tell_a_blend() -> None:
    found, evidence = blended("hevc")
    (cut,) = find_cuts(found, evidence).cuts
    assert cut.is_gradual
    assert 12.0 <= cut.t_s <= 13.0


def test_a_weak_key_amid_violent_motion_begins_no_scene() -> None:
    keys = [0, 250, 330, 580]
    sizes = [30_000 if sample in keys else 20_000 if 300 <= sample < 360 else 800 for sample in range(700)]
    found = replace(signals(index_of(sizes, keys)), blends=())
    for intra, cuts in ((0.6, 0), (0.1, 1)):
        evidence = evidence_of({0: picture(1), 250: picture(1), 330: picture(2), 580: picture(2)})
        look = next(wish for wish in find_cuts(found, evidence).wishes if isinstance(wish, Look))
        assert 320 <= look.sample < 330
        evidence.add_glance(look, Glance(intra, 0.0, 0.0, 1.0))
        assert len(find_cuts(found, evidence, is_final=True).cuts) == cuts


def test_of_keys_that_were_not_decoded_the_clear_ones_are_believed_in_the_end_but_no_flash() -> None:
    keys = [0, 250, 330, 400, 580]
    sizes = [30_000 if sample in keys else 800 for sample in range(700)]
    sizes[403] = 28_000
    found = signals(index_of(sizes, keys))
    evidence = evidence_of({0: picture(1), 580: picture(2)})
    assert [cut.t_s for cut in find_cuts(found, evidence, is_final=True).cuts] == pytest.approx([11.0, 580 / 30])
    alike = evidence_of({0: picture(1), 580: picture(1)})
    assert [cut.t_s for cut in find_cuts(found, alike, is_final=True).cuts] == pytest.approx([11.0, 580 / 30])


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
    cuts_s, wishes = judged(2)
    assert cuts_s == pytest.approx([137 / 30])
    assert wishes == []


def test_a_sample_that_leaves_the_picture_standing_is_none_at_its_place() -> None:
    cuts_s, _ = judged(1)
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
