from __future__ import annotations

import cv2
import numpy as np
import pytest

from pipeline.cascade.vlm_part import ImagesPart
from pipeline.errors import PermanentError
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage
from pipeline.vlm.pictures import Picture, choose, scaled_size
from tests.vlm.cases import HEIGHT_PX, WIDTH_PX, picture


def held(index: int, image: BgrImage, interest: float = 0.5) -> Picture:
    return Picture(index, encode_jpeg(image), image.shape[1], image.shape[0], interest)


def size_of(jpeg: bytes) -> tuple[int, int]:
    image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image.shape[1], image.shape[0]


def test_pictures_that_fit_are_sent_as_they_are() -> None:
    pictures = [held(index, picture(index)) for index in range(3)]
    shown = choose(pictures, ImagesPart())
    assert shown.jpegs == tuple(one.jpeg for one in pictures)
    assert shown.indices == (0, 1, 2)
    assert shown.share == 1.0


def test_near_duplicates_are_left_out_and_the_most_interesting_of_them_is_kept() -> None:
    image = picture(1)
    noisy = np.clip(image.astype(np.int16) + np.random.default_rng(0).integers(-3, 4, image.shape), 0, 255)
    shown = choose([held(0, image, 0.3), held(1, noisy.astype(np.uint8), 0.6), held(2, picture(2))], ImagesPart())
    assert shown.indices == (1, 2)
    assert shown.share == 1.0


def test_something_small_and_new_is_no_duplicate() -> None:
    image = picture(1)
    changed = image.copy()
    changed[100:120, 200:220] = (255, 255, 255) if image[110, 210].mean() < 128 else (0, 0, 0)
    assert choose([held(0, image), held(1, changed)], ImagesPart()).indices == (0, 1)


def test_beyond_the_limit_the_most_interesting_are_shown_in_the_videos_order() -> None:
    interest = [0.1, 0.9, 0.2, 0.8, 0.3]
    shown = choose([held(i, picture(i), interest[i]) for i in range(5)], ImagesPart(max_images=2))
    assert shown.indices == (1, 3)
    assert shown.share == pytest.approx(2 / 5)


def test_pictures_are_scaled_to_the_pixels_and_to_the_tokens_that_there_are() -> None:
    large = np.asarray(cv2.resize(picture(1), (1920, 1080)), np.uint8)
    other = np.asarray(cv2.resize(picture(2), (1080, 1920)), np.uint8)
    by_pixels = choose([held(0, large)], ImagesPart(max_pixels=200_000))
    width_px, height_px = size_of(by_pixels.jpegs[0])
    assert 160_000 <= width_px * height_px <= 200_000
    assert width_px / height_px == pytest.approx(16 / 9, rel=0.01)
    by_tokens = choose([held(0, large), held(1, other)], ImagesPart(max_image_tokens=256))
    assert by_tokens.tokens <= 256
    assert all(np.prod(size_of(jpeg)) <= 128 * 784 for jpeg in by_tokens.jpegs)


@pytest.mark.parametrize(("images", "tokens"), [(3, 100), (7, 250), (5, 161)])
def test_pictures_together_keep_to_the_tokens_that_there_are_however_they_divide(images: int, tokens: int) -> None:
    budget = ImagesPart(max_images=images, max_image_tokens=tokens, pixels_per_token=784)
    large = [np.asarray(cv2.resize(picture(number), (1920, 1080)), np.uint8) for number in range(images)]
    shown = choose([held(number, image) for number, image in enumerate(large)], budget)
    assert len(shown.jpegs) == images
    assert shown.tokens <= tokens


@pytest.mark.parametrize(("width_px", "height_px"), [(1, 1), (10_000, 1), (1, 10_000), (4000, 3000), (33, 57)])
def test_a_scaled_size_never_exceeds_its_budget_nor_vanishes(width_px: int, height_px: int) -> None:
    for most_px in (1, 1024, 100_000):
        width, height = scaled_size(width_px, height_px, most_px)
        assert width >= 1
        assert height >= 1
        assert width * height <= max(most_px, width, height)
        assert (width, height) <= (width_px, height_px)


def test_a_stored_picture_that_cannot_be_read_is_said_to_be() -> None:
    with pytest.raises(PermanentError, match="keyframe 4"):
        choose([Picture(4, b"no jpeg", WIDTH_PX, HEIGHT_PX, 0.5)], ImagesPart())


def test_no_picture_is_no_picture() -> None:
    assert choose([], ImagesPart()).indices == ()
