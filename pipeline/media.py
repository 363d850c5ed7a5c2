"""Values about videos: which object, what is in it, and the keyframes taken from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

BgrImage = NDArray[np.uint8]
"""Shape (height, width, 3), uint8, blue-green-red, upright, square pixels."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One version of one stored object. Without `version_id` and `etag` it names whatever lies there now."""

    bucket: str
    key: str
    version_id: str | None = None
    etag: str | None = None
    size_bytes: int | None = None

    @property
    def is_resolved(self) -> bool:
        """Whether the reference is pinned to one version of the object."""
        return self.version_id is not None or self.etag is not None

    @property
    def version(self) -> str:
        """What identifies the version, `v:<version id>` or `e:<ETag>`; ValueError where neither is known."""
        if self.version_id is not None:
            return f"v:{self.version_id}"
        if self.etag is not None:
            return f"e:{self.etag}"
        raise ValueError(f"s3://{self.bucket}/{self.key} is not resolved to a version")

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What the container and the chosen video stream say. Width and height are as displayed, upright."""

    duration_s: float
    width_px: int
    height_px: int
    rotation_deg: int
    codec: str
    container: str
    frames: int
    time_base: Fraction


class KeyframeReason(StrEnum):
    START = "start"
    SCENE_CUT = "scene_cut"
    MOTION = "motion"
    COVERAGE = "coverage"


@dataclass(frozen=True, slots=True)
class Keyframe:
    """One chosen frame. `t_s` counts from the first displayed frame; `score` in 0..1 says how clear the reason was."""

    t_s: float
    pts: int
    reason: KeyframeReason
    score: float


@dataclass(frozen=True, slots=True)
class KeyframeSettings:
    """How many keyframes to take. Part of a policy's decision part, so part of its hash."""

    per_minute: float = 5.0
    min_gap_s: float = 1.0
    max_keyframes: int = 60


@dataclass(frozen=True, slots=True)
class ExtractionCost:
    """What the extraction took; `cpu_s` counts user and system time of parent and child."""

    cpu_s: float
    bytes_read: int
    file_bytes: int
    ranges: int
    frames_decoded: int


@dataclass(frozen=True, slots=True)
class Extraction:
    """Keyframes of one video, with the facts they were chosen by.

    `images[i]` belongs to `keyframes[i]`. `cuts_s` are instants, `motion_s` half-open ranges, in seconds from
    the first displayed frame. `coverage` in 0..1 is the share of the duration that could be looked at.
    """

    video: VideoInfo
    cuts_s: tuple[float, ...]
    motion_s: tuple[tuple[float, float], ...]
    keyframes: tuple[Keyframe, ...]
    images: tuple[BgrImage, ...]
    warnings: tuple[str, ...]
    coverage: float
    cost: ExtractionCost
