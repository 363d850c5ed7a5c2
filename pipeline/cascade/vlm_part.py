"""The vision-language model's stage of a policy: what it is told, how it samples, what it is shown, how it answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from pipeline.cascade.parts import Name, Number, Part, Question, Words
from pipeline.cascade.rules import Thresholds

LEAST_IMAGE_TOKENS = 32
"""Below it a picture is a few patches: nothing can be read in it."""

EngineModel = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x20\x7f]{1,200}$")]


class SamplingPart(Part):
    """How the engine chooses tokens; without `top_k` its own default holds."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), Number] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), Number] = 1.0
    top_k: Annotated[int, Field(ge=1, le=1_000_000), Number] | None = None
    max_tokens: Annotated[int, Field(ge=16, le=16_384), Number] = 512
    seed: Annotated[int, Field(ge=0, lt=2**31), Number] = 0


class ImagesPart(Part):
    """What one request may show. A picture of w x h pixels is about w·h / `pixels_per_token` tokens.

    784 pixels a token (28 x 28) are Qwen2.5-VL's; other families differ, and `videosieve` only sizes by it: what is
    billed comes from the engine's own `usage`.
    """

    max_images: Annotated[int, Field(ge=1, le=64), Number] = 8
    max_pixels: Annotated[int, Field(ge=32 * 32, le=16_777_216), Number] = 602_112
    max_image_tokens: Annotated[int, Field(ge=LEAST_IMAGE_TOKENS, le=1_000_000), Number] = 8192
    pixels_per_token: Annotated[int, Field(ge=1, le=65_536), Number] = 784

    @model_validator(mode="after")
    def _images_can_be_read(self) -> ImagesPart:
        if (each := self.max_image_tokens // self.max_images) < LEAST_IMAGE_TOKENS:
            raise ValueError(
                f"max_image_tokens ({self.max_image_tokens}) leaves {each} tokens for each of max_images "
                f"({self.max_images}), and {LEAST_IMAGE_TOKENS} are the least: raise it, or lower max_images"
            )
        return self

    def tokens(self, width_px: int, height_px: int) -> int:
        """About how many tokens a picture of this size becomes once it is scaled down to `max_pixels`."""
        pixels = min(width_px * height_px, self.max_pixels)
        return max(1, -(-pixels // self.pixels_per_token))


class VlmAnswer(Thresholds):
    """How one question is put to the model, and what its score in 0..1 makes of it."""

    wording: Annotated[Words, Field(max_length=2000)]


class VlmPart(Part):
    """The last machine stage: all of a video's doubtful keyframes in one request.

    `model` is the engine's name for it. `prompt` is constant, and first in the request, so that its prefix is cached;
    the schema of the answer is derived from `answers`.
    """

    name: Name
    model: EngineModel
    prompt: Annotated[Words, Field(max_length=20_000)]
    sampling: SamplingPart = SamplingPart()
    images: ImagesPart = ImagesPart()
    answers: Annotated[dict[Question, VlmAnswer], Field(min_length=1, max_length=64)]
