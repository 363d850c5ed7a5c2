"""Samples that are looked at alone, whole or cut off: what they say must be what a full decoding says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.video.glance import Glance, glance
from pipeline.video.index import SampleIndex
from pipeline.video.limits import Limits
from pipeline.video.opening import read_index
from pipeline.video.source import ByteRange, LocalSource
from pipeline.video.synthesis import write_clip

_SIZE = (192, 320)
_CUT, _COUNT = 23, 40


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[SampleIndex, list[bytes]]:
    """A square crosses one textured still; at frame 23 another texture replaces it. One key, no B-pictures."""
    path = tmp_path_factory.mktemp("glance") / "clip.mp4"
    generator = np.random.default_rng(5)
    scenes = [generator.integers(40, 200, (*_SIZE, 3), np.uint8) for _ in range(2)]
    frames = []
    for number in range(_COUNT):
        image = scenes[number >= _CUT].copy()
        if 5 <= number < _CUT:
            image[64:128, 8 * number : 8 * number + 64] = scenes[1][:64, :64]
        frames.append(image)
    options = {"g": "250", "bf": "0", "sc_threshold": "0", "crf": "20", "threads": "1"}
    write_clip(path, frames, 30, "libx264", options)
    return _read(path)


def _read(path: Path) -> tuple[SampleIndex, list[bytes]]:
    with LocalSource(path) as source:
        index = read_index(source, Limits())
        places = zip(index.offset_bytes.tolist(), index.size_bytes.tolist(), strict=True)
        return index, source.read_ranges([ByteRange(offset, size) for offset, size in places])


def _look(clip: tuple[SampleIndex, list[bytes]], sample: int, share: float = 1.0) -> Glance:
    index, payloads = clip
    head = payloads[sample][: max(1, int(share * len(payloads[sample])))]
    seen = glance(index.facts, [head], is_whole=share == 1.0, max_pixels=1 << 22)
    if seen is None:
        seen = glance(index.facts, [payloads[sample - 1], head], is_whole=share == 1.0, max_pixels=1 << 22)
    assert seen is not None
    return seen


def test_a_new_scene_is_predicted_from_nothing(clip: tuple[SampleIndex, list[bytes]]) -> None:
    assert _look(clip, _CUT).intra > 0.9
    assert _look(clip, _CUT - 3).intra < 0.2
    assert _look(clip, _CUT + 3).intra < 0.2


def test_what_moves_is_seen_without_any_picture_before(clip: tuple[SampleIndex, list[bytes]]) -> None:
    share = 64 * 64 / (_SIZE[0] * _SIZE[1])
    assert 0.4 * share < _look(clip, 12).moving < 1.6 * share
    assert _look(clip, _CUT + 4).moving < 0.01


def test_the_beginning_of_a_sample_shows_its_upper_rows(clip: tuple[SampleIndex, list[bytes]]) -> None:
    seen = _look(clip, _CUT, share=0.5)
    assert 0.25 < seen.rows < 0.65
    assert seen.intra > 0.9


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x00\x00\x01\x41", b"\xff" * 600, bytes(600)])
def test_rubbish_says_nothing_and_breaks_nothing(clip: tuple[SampleIndex, list[bytes]], payload: bytes) -> None:
    index, payloads = clip
    assert glance(index.facts, [payload], is_whole=False, max_pixels=1 << 22) is None
    assert glance(index.facts, [payload, payloads[9]], is_whole=True, max_pixels=1 << 22) is not None
    glance(index.facts, [payloads[9], payload], is_whole=True, max_pixels=1 << 22)


def test_every_cut_off_beginning_is_survived(clip: tuple[SampleIndex, list[bytes]]) -> None:
    index, payloads = clip
    for length in range(0, len(payloads[_CUT]), 211):
        seen = glance(index.facts, [payloads[_CUT][:length]], is_whole=False, max_pixels=1 << 22)
        assert seen is None or seen.rows < 1.0
