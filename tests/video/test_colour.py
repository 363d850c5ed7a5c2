from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline.media import KeyframeSettings
from pipeline.video.colour import bgr
from pipeline.video.decode import upright_image
from pipeline.video.index import StreamFacts
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource

LIMITED, FULL = 1, 2
WEIGHTS = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 9: (0.2627, 0.0593)}
"""By the code of the matrix (BT.709, BT.601, BT.2020): the shares of red and blue in luma."""


def frame(
    luma: float,
    blue: float,
    red: float,
    *,
    matrix: int,
    colour_range: int,
    pixels: str = "yuv420p",
    size_px: tuple[int, int] = (64, 64),
) -> av.VideoFrame:
    """One colour; the values are on the 8-bit scale, whatever the depth."""
    made = av.VideoFrame(*size_px, pixels)
    bits = made.format.components[0].bits
    for plane, value in zip(made.planes, (luma, blue, red), strict=True):
        kind = np.uint16 if bits > 8 else np.uint8
        count = plane.buffer_size // (2 if bits > 8 else 1)
        plane.update(np.full(count, round(value * (1 << (bits - 8))), kind).tobytes())
    made.colorspace, made.color_range = matrix, colour_range
    return made


def expected(luma: float, blue: float, red: float, matrix: int, colour_range: int) -> list[float]:
    """Blue, green, red by the standards' equations."""
    share_r, share_b = WEIGHTS[matrix]
    if colour_range == FULL:
        y, u, v = luma / 255, (blue - 128) / 255, (red - 128) / 255
    else:
        y, u, v = (luma - 16) / 219, (blue - 128) / 224, (red - 128) / 224
    r, b = y + 2 * (1 - share_r) * v, y + 2 * (1 - share_b) * u
    g = (y - share_r * r - share_b * b) / (1 - share_r - share_b)
    return [255 * b, 255 * g, 255 * r]


@pytest.mark.parametrize("pixels", ["yuv420p", "yuv422p", "yuv420p10le", "yuv422p10le"])
@pytest.mark.parametrize("matrix", sorted(WEIGHTS))
@pytest.mark.parametrize("colour_range", [LIMITED, FULL])
def test_matrix_range_and_depth_give_the_standards_colours(pixels: str, matrix: int, colour_range: int) -> None:
    shown = bgr(frame(120, 90, 160, matrix=matrix, colour_range=colour_range, pixels=pixels), (64, 64))
    assert shown[30, 30] == pytest.approx(expected(120, 90, 160, matrix, colour_range), abs=2.5)


def test_colours_that_a_stream_does_not_name_follow_its_size() -> None:
    small = bgr(frame(120, 90, 160, matrix=2, colour_range=LIMITED), (64, 64))
    assert small[30, 30] == pytest.approx(expected(120, 90, 160, 5, LIMITED), abs=2.5)
    large = bgr(frame(120, 90, 160, matrix=2, colour_range=LIMITED, size_px=(640, 640)), (64, 64))
    assert large[30, 30] == pytest.approx(expected(120, 90, 160, 1, LIMITED), abs=2.5)


@pytest.mark.parametrize(
    ("transfer", "code", "shown"),
    [
        (16, 0.0, 0),
        (16, 0.581, 242),  # PQ's code of 203 cd/m², diffuse white
        (16, 0.751, 255),  # 1,000 cd/m²
        (16, 0.427, 127),  # 43 cd/m², about middle grey
        (18, 0.75, 242),  # HLG's diffuse white
        (18, 1.0, 255),
    ],
)
def test_high_dynamic_range_is_brought_down_with_white_staying_white(transfer: int, code: float, shown: int) -> None:
    made = frame(16 + 219 * code, 128, 128, matrix=9, colour_range=LIMITED, pixels="yuv420p10le")
    made.color_trc = transfer
    assert bgr(made, (64, 64))[30, 30] == pytest.approx([shown] * 3, abs=5)


def test_anamorphic_ten_bit_pictures_keep_their_colour_and_get_their_shape() -> None:
    facts = StreamFacts("mp4", "hevc", None, Fraction(1, 30), 64, 64, sample_aspect=Fraction(4, 3), rotation_deg=90)
    made = frame(120, 90, 160, matrix=1, colour_range=LIMITED, pixels="yuv420p10le")
    image = upright_image(made, facts, 1 << 26)
    assert image.shape == (85, 64, 3)
    assert image[40, 30] == pytest.approx(expected(120, 90, 160, 1, LIMITED), abs=2.5)


def _tagged(path: Path, pixels: str, matrix: int, transfer: int, level: tuple[float, float, float]) -> None:
    """Half a second of one colour as H.264, its matrix and transfer named in the stream, wide pixels, turned."""
    with av.open(str(path), "w") as container:
        options = {"preset": "veryfast", "crf": "1"}
        stream = container.add_stream("libx264", rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = 320, 240, pixels
        stream.codec_context.sample_aspect_ratio = stream.sample_aspect_ratio = Fraction(4, 3)
        stream.codec_context.colorspace, stream.codec_context.color_trc = matrix, transfer
        stream.codec_context.color_range = LIMITED
        stream.set_display_rotation(-90)
        for number in range(15):
            made = frame(*level, matrix=matrix, colour_range=LIMITED, pixels=pixels, size_px=(320, 240))
            made.pts, made.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(made))
        container.mux(stream.encode(None))


@pytest.mark.parametrize("pixels", ["yuv420p", "yuv422p10le"])
@pytest.mark.parametrize(("matrix", "transfer"), [(1, 1), (5, 6), (9, 1), (9, 16), (9, 18)])
def test_a_turned_anamorphic_file_comes_out_upright_square_and_in_its_colours(
    tmp_path: Path, pixels: str, matrix: int, transfer: int
) -> None:
    is_hdr = transfer in {16, 18}
    level = (16 + 219 * {16: 0.581, 18: 0.75}[transfer], 128.0, 128.0) if is_hdr else (120.0, 90.0, 160.0)
    _tagged(tmp_path / "a.mp4", pixels, matrix, transfer, level)
    with LocalSource(tmp_path / "a.mp4") as source, DecoderPool(1) as pool:
        (image, *_) = pool.extract(source, KeyframeSettings()).images
    assert image.shape == (427, 240, 3)
    golden = [242.0] * 3 if is_hdr else expected(*level, matrix, LIMITED)
    assert image[200, 120] == pytest.approx(golden, abs=5 if is_hdr else 3)
