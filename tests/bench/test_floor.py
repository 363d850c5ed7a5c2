from __future__ import annotations

from pathlib import Path

from pipeline.video.synthesis import write_clip
from tests import clips
from tests.bench.floor import floor_s


def test_the_least_cost_of_a_clip_is_measured(tmp_path: Path) -> None:
    write_clip(tmp_path / "clip.mp4", (clips.scene(number // 30) for number in range(90)), 30)
    assert floor_s(tmp_path / "clip.mp4") > 0
