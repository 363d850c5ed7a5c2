from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests import clips
from tests.bench import kept as keeping
from tests.bench.baselines import TRANSNET
from tests.bench.kept import keep, kept
from tests.bench.measuring import Measured
from tests.bench.plots import write_sheet
from tests.bench.results import OURS, ClipResult, Pool, cost_table, pooled, profile_table, quality_table
from tests.bench.scoring import Truth
from tests.bench.steps import STEPS, profile
from tests.bench.targets import verdicts


def clip(group: str, ours: Measured, *, name: str = "a", label: str = "set", **others: Measured) -> ClipResult:
    truth = Truth(group, 60.0, (10.0, 20.0), (), (), (), flashes=((30.0, 30.1),))
    methods = {OURS: ours, **others}
    return ClipResult(label, name, truth, 10_000_000, 1800, methods).scored()


def ours(cpu_s: float = 0.1, cuts_s: tuple[float, ...] = (10.0, 20.0), bytes_read: int = 500_000) -> Measured:
    return Measured(cpu_s, cpu_s, cuts_s, (), bytes_read=bytes_read, ranges=20, frames_decoded=20)


def held(pools: list[Pool], promise: str) -> bool:
    (found,) = [one.holds for one in verdicts(pools) if one.promise == promise]
    return found


@pytest.mark.parametrize(("group", "least"), [("web", 100), ("phone", 25), ("hevc", 60)])
def test_a_ratio_holds_from_what_was_promised_on(group: str, least: float) -> None:
    for share, holds in ((1.01, True), (0.99, False)):
        pools = pooled([clip(group, ours(0.1), ContentDetector=Measured(0.1 * least * share, 1.0, ()))])
        assert held(pools, "1 CPU below ContentDetector") is holds


def test_a_detector_of_an_earlier_run_counts_for_quality_and_not_for_cost() -> None:
    earlier = Measured(50.0, 50.0, (10.0, 20.0), is_same_run=False)
    pools = pooled([clip("web", ours(cuts_s=(10.0,)), ContentDetector=earlier)])
    assert pools[0].cpu_ratio() is None
    assert not [one for one in verdicts(pools) if one.promise.startswith("1")]
    assert not held(pools, "2 cut F1")
    assert "earlier run" in quality_table(pools)
    assert "| – | 0 |" in cost_table(pools)


def test_f1_is_compared_on_the_clips_that_both_saw() -> None:
    seen = clip("web", ours(), ContentDetector=Measured(1.0, 1.0, (10.0,)), name="seen")
    unseen = clip("web", ours(cuts_s=()), name="unseen")
    assert held(pooled([seen, unseen]), "2 cut F1")


def test_a_cut_at_a_flash_and_bytes_above_the_share_are_no_promise_kept() -> None:
    pools = pooled([clip("phone", ours(cuts_s=(10.0, 20.0, 30.0), bytes_read=2_100_000))])
    assert not held(pools, "2 no cut at flash, exposure")
    assert not held(pools, "3 bytes read")
    assert held(pools, "3 ranges a minute")
    assert held(pooled([clip("web", ours(bytes_read=1_199_999))]), "3 bytes read")


def test_a_larger_picture_is_held_against_the_smaller_one_of_its_set() -> None:
    small, large = clip("web 720p", ours(0.1)), clip("web 1080p", ours(0.2))
    assert not held(pooled([small, large]), "1 CPU of 1080p")
    assert held(pooled([small, clip("web 1080p", ours(0.15))]), "1 CPU of 1080p")


def test_what_a_detector_found_is_kept_by_the_clips_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "KEPT", tmp_path / "kept")
    one, same, other = (tmp_path / f"{name}.mp4" for name in ("one", "same", "other"))
    one.write_bytes(b"a")
    same.write_bytes(b"a")
    other.write_bytes(b"b")
    keep(TRANSNET, one, Measured(1.0, 2.0, (3.0,)))
    found = kept(TRANSNET, same)
    assert found is not None
    assert (found.cuts_s, found.is_same_run) == ((3.0,), False)
    assert kept(TRANSNET, other) is None


def test_a_profile_splits_an_extraction_into_steps_that_add_up(tmp_path: Path) -> None:
    path = clips.write_cuts(tmp_path / "a.mp4")
    found = profile(path)
    assert set(found.seconds) == set(STEPS)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert min(found.seconds["decode"], found.seconds["JPEG"], found.seconds["index"]) > 0
    assert 0 < found.decoded_bytes <= path.stat().st_size
    assert found.images >= 1
    truth = Truth("web", 7.0, (), (), (), ())
    result = ClipResult("set", "a", truth, path.stat().st_size, 210, {OURS: ours()}, profile=found).scored()
    assert profile_table(pooled([result])).count("\n") == 2


def test_a_sheet_shows_every_keyframe_with_its_time(tmp_path: Path) -> None:
    ok, data = cv2.imencode(".jpg", clips.scene(1))
    assert ok
    write_sheet(tmp_path / "a.jpg", [data.tobytes()] * 5, [(float(t_s), "start") for t_s in range(5)])
    sheet = cv2.imread(str(tmp_path / "a.jpg"))
    assert sheet is not None
    assert sheet.shape == (400, 960, 3)
    captions = sheet[180:200, :320]
    assert np.count_nonzero(captions > 128) > 50
