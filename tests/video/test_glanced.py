"""What is made of places that sizes point at: looked at where possible, believed where certain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.video.evidence import Evidence, Look
from pipeline.video.glance import Glance
from pipeline.video.glanced import find_glanced_cuts, is_dense, shot_keys
from pipeline.video.likely import Place
from pipeline.video.signals import Signals, signals
from pipeline.video.verdicts import looks
from tests.video.synthetic import FPS, evidence_of, index_of, picture

_KEYS = list(range(0, 600, 30))


def _signals(*places: Place, sizes: dict[int, int] | None = None) -> Signals:
    table = [180_000 if sample in _KEYS else 30_000 for sample in range(600)]
    for sample, size in (sizes or {}).items():
        table[sample] = size
    return replace(signals(index_of(table, _KEYS)), places=places)


def _hard(sample: int, likelihood: float = 0.5) -> Place:
    return Place(sample, sample / FPS, likelihood, is_gradual=False)


def _gradual(sample: int, likelihood: float = 0.4) -> Place:
    return Place(sample, sample / FPS, likelihood, is_gradual=True)


def _seen(found: Signals, place: Place, *intra: float) -> Evidence:
    evidence = Evidence()
    wanted = looks(found, place)
    assert len(wanted) == len(intra)
    for look, share in zip(wanted, intra, strict=True):
        evidence.add_glance(look, Glance(share, 0.0, 0.0, 0.4))
    return evidence


def test_a_place_is_asked_for_and_doubted_until_it_was_looked_at() -> None:
    found = _signals(_hard(100))
    asked = find_glanced_cuts(found, Evidence())
    assert asked.wishes == (Look(100, 24_000),)
    assert asked.cuts == ()


@pytest.mark.parametrize(("intra", "is_cut"), [(0.97, True), (0.6, False), (0.02, False)])
def test_a_scene_begins_where_nothing_is_predicted(intra: float, is_cut: bool) -> None:
    place = _hard(100)
    found = _signals(place)
    assert bool(find_glanced_cuts(found, _seen(found, place, intra)).cuts) is is_cut


def test_a_flash_comes_back_and_is_no_cut() -> None:
    place = _hard(100)
    found = _signals(place, sizes={100: 90_000, 103: 80_000})
    assert find_glanced_cuts(found, _seen(found, place, 0.99, 0.97, 0.03)).cuts == ()
    (cut,) = find_glanced_cuts(found, _seen(found, place, 0.99, 0.97, 0.8)).cuts
    assert cut.is_gradual


def test_what_looks_like_a_flash_amid_a_likely_blend_is_a_fade() -> None:
    place = replace(_hard(100), blend=0.7)
    found = _signals(place, sizes={100: 90_000, 103: 80_000})
    (cut,) = find_glanced_cuts(found, _seen(found, place, 0.99, 0.97, 0.03)).cuts
    assert cut.is_gradual


@pytest.mark.parametrize(("intra", "is_cut"), [((0.2, 0.3), True), ((0.02, 0.04), False), ((0.0, 0.2), False)])
def test_a_blend_is_predicted_badly_all_along(intra: tuple[float, float], is_cut: bool) -> None:
    place = _gradual(100)
    found = _signals(place)
    assert bool(find_glanced_cuts(found, _seen(found, place, *intra)).cuts) is is_cut


def test_what_cannot_be_looked_at_is_believed_only_when_likely() -> None:
    found = _signals(_hard(100, 0.9), _hard(200, 0.3), _gradual(300, 0.9), _gradual(400, 0.2))
    cuts = find_glanced_cuts(found, Evidence(), is_final=True).cuts
    assert [cut.sample for cut in cuts] == [100, 300]


def test_the_longest_shots_without_a_picture_are_shown_by_their_first_key() -> None:
    found = _signals(_hard(100, 0.95), _hard(400, 0.95))
    cuts = find_glanced_cuts(found, Evidence(), is_final=True).cuts
    keys = [run.samples for run in shot_keys(found, Evidence(), cuts, 2)]
    assert keys == [(120,), (420,)]
    assert shot_keys(found, evidence_of({150: picture(1), 450: picture(2)}), cuts, 2) == []


def test_only_many_likely_places_are_worth_glances_instead_of_keys() -> None:
    assert not is_dense(_signals(_hard(100, 0.9)))
    many = range(20, 580, 40)
    assert is_dense(_signals(*(_hard(sample, 0.95) for sample in many)))
    assert is_dense(_signals(*(_gradual(sample, 0.6) for sample in many)))
    assert not is_dense(_signals(*(_hard(sample, 0.7) for sample in many)))  # as before a still camera without noise
