from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.video.synthesis import clip_frames, fitted, read_clip, write_clip, write_montage
from tests import clips


def test_what_is_written_reads_back_in_order(tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 20)
    assert [clips.frame_number(image) for image in read_clip(path)] == list(range(20))


def test_a_montage_cuts_between_its_clips_and_goes_on_where_it_left(tmp_path: Path) -> None:
    first = clips.write_numbered(tmp_path / "a.mp4", 40, fps=10)
    second = clips.write_numbered(tmp_path / "b.mp4", 15, fps=10)
    write_montage(tmp_path / "m.mp4", [first, second], shot_s=1.0, duration_s=4.0, width=640, height=360, fps=10)
    frames = read_clip(tmp_path / "m.mp4")
    assert frames[0].shape == (360, 640, 3)
    numbers = [clips.frame_number(image) for image in frames]
    assert numbers == [*range(10), *range(10), *range(10, 20), *range(10, 15), *range(5)]


def test_other_frame_rates_are_resampled(tmp_path: Path) -> None:
    slow = clips.write_numbered(tmp_path / "a.mp4", 20, fps=10)
    write_montage(tmp_path / "m.mp4", [slow], shot_s=9.0, duration_s=1.0, width=320, height=180, fps=30)
    numbers = [clips.frame_number(image) for image in clip_frames(tmp_path / "m.mp4")]
    assert numbers == [number // 3 for number in range(30)]


def test_pictures_are_fitted_between_black_bars() -> None:
    image = fitted(np.full((100, 100, 3), 200, np.uint8), (320, 180))
    assert image.shape == (180, 320, 3)
    assert not image[:, :60].any()
    assert (image[:, 80:240] == 200).all()


def test_a_clip_needs_frames(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        write_clip(tmp_path / "a.mp4", [], 30)
