from __future__ import annotations

import itertools
import json
from pathlib import Path

from pipeline.video.synthesis import write_clip
from tests import clips
from tests.bench.recut import images, pieces, truth_of

FPS = 30


def test_recut_footage_has_as_many_frames_as_its_truth_says_and_never_joins_a_shot_with_itself(tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = tmp_path / f"{name}.mp4"
        write_clip(path, (clips.scene(number // 180) for number in range(360)), FPS)
        truth = {"duration": 12.0, "cuts": [6.0], "gradual": [], "motion": [], "motion_scored": []}
        path.with_suffix(".json").write_text(json.dumps(truth))
    parts = pieces(sorted(tmp_path.glob("*.mp4")), seed=1, shots=4)
    assert all((one.clip, one.start_s) != (other.clip, other.start_s) for one, other in itertools.pairwise(parts))
    truth = truth_of(parts, "recut", "web")
    assert sum(1 for _ in images(parts)) == round(float(str(truth["duration"])) * FPS)
    joins = [part.joins for part in parts[1:]]
    assert joins.count("cut") == len(truth["cuts"])  # type: ignore[arg-type]
