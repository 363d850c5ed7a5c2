"""The sample table: what a container says about every sample of the chosen video stream, before any decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PermanentError, Reason
from pipeline.media import VideoInfo
from pipeline.video.limits import Limits

CODECS = frozenset(
    (
        *("h264", "hevc", "av1", "vp8", "vp9", "mpeg1video", "mpeg2video", "mpeg4"),
        *("msmpeg4v2", "msmpeg4v3", "h263", "flv1", "mjpeg", "prores", "dvvideo"),
    )
)
"""Codecs that uploads may use, by FFmpeg's names; everything else is turned away before a decoder sees it."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the container says about the chosen stream as a whole.

    `width_px` and `height_px` are as coded; `sample_aspect` is the width of a pixel over its height;
    `rotation_deg` (0, 90, 180, 270) is how far a player turns the picture clockwise, after mirroring it
    left to right where `mirrored`.
    """

    container: str
    codec: str
    extradata: bytes | None
    time_base: Fraction
    width_px: int
    height_px: int
    sample_aspect: Fraction = Fraction(1)
    rotation_deg: int = 0
    mirrored: bool = False


@dataclass(frozen=True, slots=True)
class SampleIndex:
    """Every sample of the stream in decoding order; arrays have one entry per sample.

    `offset_bytes` int64 is the place in the file, or -1 where samples are not contiguous there (then
    `payloads` holds those that were kept); `size_bytes` int64; `dts` and `pts` int64 in `facts.time_base`
    after edit lists, equal to what FFmpeg's demuxer reports; `is_key` and `is_shown` bool: the latter is False
    for samples that an edit list hides. `start_pts` is the first displayed frame's, `end_pts` the end of the
    last one, or of what the file declares and lacks; that part, in ticks, is
    `missing_end`. `streams` names kind and codec of every stream. `is_foreign` is True for samples of another codec.
    """

    facts: StreamFacts
    offset_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    dts: NDArray[np.int64]
    pts: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_shown: NDArray[np.bool_]
    start_pts: int
    end_pts: int
    is_readable: NDArray[np.bool_]
    warnings: tuple[str, ...] = ()
    payloads: Mapping[int, bytes] = field(default_factory=dict)
    missing_end: int = 0
    streams: tuple[str, ...] = ()
    is_foreign: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for column in (self.size_bytes, self.dts, self.pts, self.is_key, self.is_shown, self.is_readable):
            if column.shape != self.offset_bytes.shape:
                raise ValueError("the columns of a sample index differ in length")

    def __len__(self) -> int:
        return len(self.offset_bytes)

    @property
    def seen_end_pts(self) -> int:
        """Where the last frame that the file holds or lists ends."""
        return self.end_pts - self.missing_end

    @property
    def duration_s(self) -> float:
        return float((self.end_pts - self.start_pts) * self.facts.time_base)

    @property
    def t_s(self) -> NDArray[np.float64]:
        """Seconds from the first displayed frame, float64, one per sample."""
        base = self.facts.time_base
        return np.asarray((self.pts - self.start_pts) * (base.numerator / base.denominator), np.float64)

    @property
    def display_size_px(self) -> tuple[int, int]:
        """Width and height as displayed: square pixels, upright."""
        width_px, height_px = square_pixels(self.facts.width_px, self.facts.height_px, self.facts.sample_aspect)
        return (height_px, width_px) if self.facts.rotation_deg % 180 else (width_px, height_px)

    def video_info(self) -> VideoInfo:
        width_px, height_px = self.display_size_px
        return VideoInfo(
            duration_s=self.duration_s,
            width_px=width_px,
            height_px=height_px,
            rotation_deg=self.facts.rotation_deg,
            codec=self.facts.codec,
            container=self.facts.container,
            frames=int(self.is_shown.sum()),
            time_base=self.facts.time_base,
        )


def square_pixels(width_px: int, height_px: int, sample_aspect: Fraction) -> tuple[int, int]:
    """The size with square pixels: the width is stretched or shrunk, the height stays."""
    if sample_aspect <= 0 or not Fraction(1, 8) <= sample_aspect <= 8:
        return width_px, height_px
    return max(1, round(width_px * sample_aspect)), height_px


def checked(index: SampleIndex, limits: Limits) -> SampleIndex:
    """`index`, if it keeps the limits and can be decoded; else a PermanentError that says why."""
    facts = index.facts
    if facts.codec not in CODECS:
        raise PermanentError(Reason.UNSUPPORTED_CODEC, f"the codec {facts.codec} is not accepted")
    if len(index) == 0:
        raise PermanentError(Reason.NO_FRAMES, "the video stream has no samples")
    shown_width_px, shown_height_px = index.display_size_px
    if max(facts.width_px * facts.height_px, shown_width_px * shown_height_px) > limits.max_pixels:
        raise PermanentError(
            Reason.TOO_MANY_PIXELS,
            f"frames of {facts.width_px}x{facts.height_px} pixels exceed {limits.max_pixels} pixels",
        )
    if index.duration_s > limits.max_duration_s:
        raise PermanentError(Reason.TOO_LONG, f"{index.duration_s:.0f} s are longer than {limits.max_duration_s:.0f} s")
    if not index.is_readable.any():
        raise PermanentError(Reason.TRUNCATED, "all samples lie past the end of the file")
    if not (index.is_key & index.is_readable).any():  # no picture stands for itself: try from the first one there is
        is_key = index.is_key.copy()
        is_key[int(index.is_readable.argmax())] = True
        return replace(index, is_key=is_key)
    return index
