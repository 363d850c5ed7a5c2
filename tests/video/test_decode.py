from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline.media import BgrImage
from pipeline.video.decode import CodedSample, SampleDecoder, is_intra, thumbnail, upright_image
from pipeline.video.index import SampleIndex, StreamFacts
from pipeline.video.keyframes import reach
from pipeline.video.limits import Limits
from pipeline.video.opening import read_index
from pipeline.video.samples import SampleReader
from pipeline.video.signals import signals
from pipeline.video.source import LocalSource
from pipeline.video.synthesis import write_clip
from tests import clips


def decoded(path: Path, wanted: list[int] | None = None) -> tuple[SampleIndex, dict[int, av.VideoFrame]]:
    """The index, and the frames of the wanted samples (all keys), each decoded for itself."""
    with LocalSource(path) as source:
        index = read_index(source, Limits())
        reader = SampleReader(source, index)
        decoder = SampleDecoder(index.facts, max_pixels=1 << 26, loop_filter=True)
        frames: dict[int, av.VideoFrame] = {}
        for sample in np.flatnonzero(index.is_key).tolist() if wanted is None else wanted:
            path_to = reach(signals(index), sample)
            coded = reader.read(path_to)
            found = decoder.decode([coded[s] for s in path_to], frozenset([int(index.pts[sample])]))
            frames[sample] = found[int(index.pts[sample])]
        return index, frames


def number_of(frame: av.VideoFrame, facts: StreamFacts) -> int:
    return clips.frame_number(upright_image(frame, facts, 1 << 26))


@pytest.mark.parametrize(
    ("suffix", "codec", "options"),
    [
        (".mp4", "libx264", {"preset": "veryfast", "g": "12", "bf": "3"}),
        (".mp4", "libx264", {"preset": "veryfast", "g": "12", "bf": "2", "x264-params": "open-gop=1"}),
        (".mkv", "libx264", {"preset": "veryfast", "g": "12"}),
        (".ts", "libx264", {"preset": "veryfast", "g": "12"}),
        (".avi", "mpeg4", {"g": "12"}),
        (".mp4", "libx265", {"preset": "ultrafast", "x265-params": "log-level=none:keyint=12"}),
        (".webm", "libvpx-vp9", {"g": "12", "deadline": "realtime", "cpu-used": "8"}),
        (".mov", "mjpeg", {}),
        (".mpg", "mpeg2video", {"g": "12", "b": "2M"}),
    ],
)
def test_each_key_decodes_alone_to_the_frame_that_its_pixels_name(
    tmp_path: Path, suffix: str, codec: str, options: Mapping[str, str]
) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this build of FFmpeg has no {codec}")
    path = clips.write_numbered(tmp_path / f"a{suffix}", 48, codec=codec, options=options)
    index, frames = decoded(path)
    assert len(frames) >= 4
    by_time = sorted(index.pts.tolist())
    for sample, frame in frames.items():
        assert is_intra(frame)
        assert number_of(frame, index.facts) == by_time.index(int(index.pts[sample]))


def test_a_sample_between_keys_is_reached_from_its_key(tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 50, options={"preset": "veryfast", "g": "25"})
    index = decoded(path, [])[0]
    steps = np.flatnonzero(signals(index).is_reference)[3::5].tolist()
    _, frames = decoded(path, steps)
    by_time = sorted(index.pts.tolist())
    for sample, frame in frames.items():
        assert number_of(frame, index.facts) == by_time.index(int(index.pts[sample]))


@pytest.mark.parametrize("rotation_deg", [0, 90, 180, 270])
def test_images_are_upright(tmp_path: Path, rotation_deg: int) -> None:
    marked: BgrImage = np.full((180, 320, 3), 30, np.uint8)
    marked[:40, :60] = (0, 0, 255)  # red in the coded picture's top left corner
    write_clip(tmp_path / "a.mp4", [marked] * 3, 30, rotation_deg=rotation_deg)
    index, frames = decoded(tmp_path / "a.mp4")
    image = upright_image(frames[0], index.facts, 1 << 26)
    corners = {0: (10, 10), 90: (10, -10), 180: (-10, -10), 270: (-10, 10)}
    row, column = corners[rotation_deg]
    assert image[row, column, 2] > 200
    assert image[row, column, 0] < 60
    assert image.shape == ((180, 320, 3) if rotation_deg % 180 == 0 else (320, 180, 3))
    assert image.flags.c_contiguous


def test_pixels_become_square_and_large_pictures_small() -> None:
    frame = av.VideoFrame.from_ndarray(np.zeros((100, 100, 3), np.uint8), format="bgr24")
    facts = StreamFacts("mp4", "h264", None, Fraction(1, 30), 100, 100, sample_aspect=Fraction(2))
    assert upright_image(frame, facts, 1 << 26).shape == (100, 200, 3)
    small = upright_image(frame, facts, 5000)
    assert small.shape == (50, 100, 3)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv420p10le", "yuv422p", "nv12", "gray", "rgb24"])
def test_thumbnails_are_the_same_luma_whatever_the_pixel_format(pixel_format: str) -> None:
    image = clips.scene(5)
    plain = av.VideoFrame.from_ndarray(image, format="bgr24").reformat(format="yuv420p")
    other = plain.reformat(format=pixel_format)
    expected, found = thumbnail(plain).astype(int), thumbnail(other).astype(int)
    assert found.shape == (90, 160)
    spread = 45 if pixel_format in {"gray", "rgb24"} else 4  # full against limited range
    assert np.abs(found - expected).max() <= spread


def test_garbage_yields_no_frame_and_leaves_the_decoder_usable(tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 10)
    with LocalSource(path) as source:
        index = read_index(source, Limits())
        good = SampleReader(source, index).read([0])[0]
        decoder = SampleDecoder(index.facts, max_pixels=1 << 26, loop_filter=False)
        wanted = frozenset([good.pts])
        assert decoder.decode([CodedSample(0, good.pts, b"\xff" * 500)], wanted) == {}
        assert decoder.decode([CodedSample(0, good.pts, b"")], wanted) == {}
        assert good.pts in decoder.decode([good], wanted)


def test_a_picture_beyond_the_pixel_limit_is_not_decoded(tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 5)
    with LocalSource(path) as source:
        index = read_index(source, Limits())
        good = SampleReader(source, index).read([0])[0]
        decoder = SampleDecoder(index.facts, max_pixels=1000, loop_filter=False)
        assert decoder.decode([good], frozenset([good.pts])) == {}
