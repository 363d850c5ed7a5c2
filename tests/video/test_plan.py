from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.video.evidence import Evidence, Run
from pipeline.video.plan import (
    Budget,
    affordable,
    budget,
    first_look,
    most_bytes_read,
    next_runs,
    read_gap_bytes,
    sparse_gops,
)
from pipeline.video.signals import signals
from tests.video.synthetic import evidence_of, index_of, picture


def web() -> tuple[list[int], list[int]]:
    keys = list(range(0, 1800, 200))
    return [30_000 if sample in keys else 700 for sample in range(1800)], keys


def test_of_few_keys_those_are_looked_at_between_which_something_may_have_happened() -> None:
    sizes, keys = web()
    assert sorted(run.samples[0] for run in first_look(signals(index_of(sizes, keys)))) == keys[::2]
    eventful = [7_000 if 650 <= sample < 680 else size for sample, size in enumerate(sizes)]
    looked_at = {run.samples[0] for run in first_look(signals(index_of(eventful, keys)))}
    assert {600, 800} <= looked_at


def test_more_ranges_than_are_left_are_not_asked_for() -> None:
    keys = list(range(0, 1800, 30))
    sizes = [60_000 if sample % 30 == 0 else 20_000 for sample in range(1800)]
    found = signals(index_of(sizes, keys))
    runs = affordable(found, [Run((key,)) for key in keys[::4]], Budget(10**9, 10**6, ranges=5))
    assert len(runs) == 5
    near = affordable(found, [Run((key,)) for key in keys[:8]], Budget(10**9, 10**6, ranges=1, read_bytes=3_000_000))
    assert 2 <= len(near) <= 5  # neighbours are read in one range, as long as the bytes suffice


def test_many_keys_are_sampled_all_over_the_video_first() -> None:
    keys = list(range(0, 1800, 30))
    sizes = [60_000 if sample in keys else 20_000 + 97 * sample % 500 for sample in range(1800)]
    runs = first_look(signals(index_of(sizes, keys)))
    assert len(runs) < 0.5 * len(keys)
    assert max(run.samples[0] for run in runs[:4]) - min(run.samples[0] for run in runs[:4]) > 900


def test_when_all_keys_show_the_same_nothing_more_is_wanted() -> None:
    sizes, keys = web()
    found = signals(index_of(sizes, keys))
    evidence = evidence_of({key: picture(1) for key in keys})
    assert next_runs(found, evidence, Budget(10**9, 10**6)) == []


def test_unreadable_keys_are_not_asked_for() -> None:
    sizes, keys = web()
    readable = [sample < 900 for sample in range(1800)]
    runs = first_look(signals(index_of(sizes, keys, readable=readable)))
    assert all(sample < 900 for run in runs for sample in run.samples)


def test_one_endless_gop_is_decoded_from_its_key() -> None:
    runs = first_look(signals(index_of([30_000] + [900] * 1799, [0])))
    assert any(isinstance(run, Run) and len(run.samples) > 100 and not run.is_patched for run in runs)


WEB = signals(index_of(*web()))


@given(limit_bytes=st.integers(0, 10**6), frames=st.integers(0, 40))
def test_a_plan_never_costs_more_than_is_left(limit_bytes: int, frames: int) -> None:
    found, sizes = WEB, web()[0]
    runs = next_runs(found, Evidence(), Budget(limit_bytes, frames))
    assert sum(sizes[sample] for run in runs for sample in run.samples) <= limit_bytes
    assert sum(len(run.samples) for run in runs) <= frames
    assert runs == affordable(found, runs, Budget(limit_bytes, frames))


def test_the_budget_keeps_under_five_percent_of_the_frames() -> None:
    sizes, keys = web()
    allowed = budget(signals(index_of(sizes, keys)), keyframes=5)
    assert allowed.frames + 5 < 0.05 * 1800


def test_a_cut_off_tail_makes_no_long_gop() -> None:
    sizes, keys = web()
    readable = [sample < 300 for sample in range(1800)]
    assert sparse_gops(signals(index_of(sizes, keys, readable=readable))) == []


def test_a_gop_of_which_no_reference_can_be_read_plans_nothing() -> None:
    sizes = [30_000] + [900] * 1799
    found = signals(index_of(sizes, [0]))
    unreferenced = replace(found, is_reference=np.zeros(1800, bool))
    assert [run for run in first_look(unreferenced) if len(run.samples) > 1] == []


def test_without_a_readable_key_there_is_no_gop_and_no_plan() -> None:
    found = signals(index_of([30_000] + [900] * 1799, [0], readable=[sample > 0 for sample in range(1800)]))
    assert sparse_gops(found) == []
    assert budget(found, keyframes=5).frames >= 0
    assert first_look(found) == []


def test_of_long_gops_at_most_an_eighth_or_a_megabyte_is_read() -> None:
    sizes, keys = web()
    small = signals(index_of([size * 4 for size in sizes], keys))
    assert most_bytes_read(small) <= 1_000_000
    large = signals(index_of([size * 20 for size in sizes], keys))
    assert most_bytes_read(large) <= 0.12 * sum(large.index.size_bytes)
    assert budget(large, keyframes=5).read_bytes < most_bytes_read(large)


def test_keys_are_read_together_only_while_there_are_bytes_for_it() -> None:
    keys = list(range(0, 900, 30))
    sizes = [60_000 if sample % 30 == 0 else 20_000 for sample in range(900)]
    found = signals(index_of(sizes, keys))
    runs = [Run((key,)) for key in keys[:2]]
    rich, poor = (
        Budget(10**9, 10**6, ranges=1, read_bytes=3_000_000),
        Budget(10**9, 10**6, ranges=9, read_bytes=900_000),
    )
    assert len(affordable(found, runs, rich)) == 2
    assert read_gap_bytes(found, rich) > read_gap_bytes(found, poor)
