import base64

import cv2
import numpy as np
import pytest

from pipeline.jpeg import encode_jpeg
from pipeline.report.pictures import MAX_CARDS, Album, cards_per_video
from tests.report.samples import picture


def size_px(uri: str) -> tuple[int, int]:
    pixels = cv2.imdecode(np.frombuffer(base64.b64decode(uri.partition(",")[2]), np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    return pixels.shape[1], pixels.shape[0]


@pytest.mark.parametrize(("width_px", "height_px"), [(1280, 720), (720, 1280), (4096, 2304), (320, 180)])
def test_pictures_are_scaled_down_and_never_up(width_px: int, height_px: int) -> None:
    jpeg = encode_jpeg(picture(0, width_px, height_px))
    album = Album(lambda _: jpeg, pictures=1, max_side_px=480)
    uri = album.picture("a.jpg", (width_px, height_px)).uri
    assert uri is not None
    scale = min(1.0, 480 / max(width_px, height_px))
    assert size_px(uri) == (round(width_px * scale), round(height_px * scale))


def test_a_wrong_claim_about_the_size_costs_sharpness_at_most() -> None:
    jpeg = encode_jpeg(picture(0, 640, 360))
    album = Album(lambda _: jpeg, pictures=1, max_side_px=480)
    assert album.picture("a.jpg", (60_000, 60_000)).uri is not None


@pytest.mark.parametrize(
    ("image", "stored", "missing"),
    [
        (None, b"", "no picture was stored"),
        ("a.jpg", None, "the stored picture is gone"),
        ("a.jpg", b"", "the stored picture is gone"),
        ("a.jpg", b"<svg onload=alert(1)>", "the stored picture cannot be read"),
    ],
)
def test_a_missing_picture_says_why(image: str | None, stored: bytes | None, missing: str) -> None:
    shown = Album(lambda _: stored, pictures=1, max_side_px=480).picture(image, (1280, 720))
    assert (shown.uri, shown.missing) == (None, missing)


def test_the_more_pictures_the_smaller_each_and_none_beyond_the_budget() -> None:
    jpeg = encode_jpeg(picture(0))
    album = Album(lambda _: jpeg, pictures=100, max_side_px=480, budget_bytes=200_000)
    assert album.side_px == 120
    shown = [album.picture("a.jpg", (1280, 720)) for _ in range(100)]
    total_bytes = sum(len(p.uri or "") for p in shown)
    assert total_bytes < 200_000 * 1.4
    assert {p.missing for p in shown} <= {"", "left out to keep this page small"}


@pytest.mark.parametrize("videos", [0, 1, 500, 10_000])
def test_every_video_keeps_a_few_cards(videos: int) -> None:
    assert 4 <= cards_per_video(videos) <= 60
    assert videos > MAX_CARDS // 4 or videos * cards_per_video(videos) <= MAX_CARDS
