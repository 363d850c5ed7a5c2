"""The containers and codecs that people upload, as small clips of the same footage: a table, and what writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np
from av.video.stream import VideoStream

from pipeline.media import BgrImage

FAST: Mapping[str, str] = {"preset": "veryfast"}
X265 = "log-level=none:pools=1:frame-threads=1"
HEVC: Mapping[str, str] = {"preset": "ultrafast", "x265-params": X265}
VPX: Mapping[str, str] = {"deadline": "realtime", "cpu-used": "8"}
AV1: Mapping[str, str] = {"preset": "12", "crf": "40", "svtav1-params": "lp=1"}
FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


@dataclass(frozen=True, slots=True)
class Encoding:
    """`codec` is the name that an extraction reports; `ticks` maps a frame's number to its PTS in 1/fps."""

    name: str
    suffix: str
    encoder: str
    codec: str
    options: Mapping[str, str] = field(default_factory=dict)
    pixels: str = "yuv420p"
    size_px: tuple[int, int] = (320, 180)
    container: Mapping[str, str] = field(default_factory=dict)
    fps: int = 30
    ticks: Callable[[int], int] = int
    rotation_deg: int = 0


def _every_other_later(number: int) -> int:
    """Frames 60 and on last three ticks: 30 frames a second, then 10."""
    return number if number < 60 else 60 + 3 * (number - 60)


def _x264(name: str, suffix: str = "mp4", pixels: str = "yuv420p", more: Mapping[str, str] | None = None) -> Encoding:
    return Encoding(name, suffix, "libx264", "h264", {**FAST, **(more or {})}, pixels)


def _intra(name: str, suffix: str, encoder: str, codec: str, pixels: str) -> Encoding:
    return Encoding(name, suffix, encoder, codec, {}, pixels)


ENCODINGS = (
    Encoding("index at the end", "mp4", "libx264", "h264", FAST),
    Encoding("index first", "mp4", "libx264", "h264", FAST, container={"movflags": "faststart"}),
    Encoding("fragmented", "mp4", "libx264", "h264", FAST, container=FRAGMENTED),
    Encoding("fragmented, a key a second", "mp4", "libx264", "h264", {**FAST, "g": "30"}, container=FRAGMENTED),
    _x264("QuickTime", "mov"),
    _x264("Matroska", "mkv"),
    _x264("transport stream", "ts"),
    _x264("Flash", "flv"),
    _x264("AVI, decoding times only", "avi", more={"bf": "2"}),
    _x264("open GOPs", more={"g": "40", "x264-params": "open-gop=1"}),
    _x264("intra refresh", more={"g": "40", "x264-params": "intra-refresh=1"}),
    _x264("pyramid of B-frames", more={"bf": "8", "x264-params": "b-pyramid=normal:b-adapt=2"}),
    _x264("4:2:2", pixels="yuv422p"),
    _x264("10 bits", pixels="yuv420p10le"),
    _x264("4:2:2, 10 bits", "mov", pixels="yuv422p10le"),
    _x264("one key", more={"g": "9999", "sc_threshold": "0"}),
    _x264("a key a second, none at cuts", more={"g": "30", "sc_threshold": "0"}),
    Encoding("HEVC", "mp4", "libx265", "hevc", HEVC),
    Encoding("HEVC, 10 bits", "mp4", "libx265", "hevc", HEVC, "yuv420p10le"),
    Encoding("HEVC, a key a second", "mp4", "libx265", "hevc", {**HEVC, "x265-params": f"{X265}:keyint=30:scenecut=0"}),
    Encoding("HEVC, Matroska", "mkv", "libx265", "hevc", HEVC),
    Encoding("HEVC, transport stream", "ts", "libx265", "hevc", HEVC),
    Encoding("VP8", "webm", "libvpx", "vp8", VPX),
    Encoding("VP8, short GOPs", "webm", "libvpx", "vp8", {**VPX, "g": "15"}),
    Encoding("VP9", "webm", "libvpx-vp9", "vp9", VPX),
    Encoding("VP9, alternate references", "mkv", "libvpx-vp9", "vp9", {"deadline": "good", "cpu-used": "5"}),
    Encoding("VP9, MP4", "mp4", "libvpx-vp9", "vp9", {**VPX, "g": "15"}),
    Encoding("AV1", "mp4", "libsvtav1", "av1", AV1),
    Encoding("AV1, WebM, short GOPs", "webm", "libsvtav1", "av1", {**AV1, "g": "15"}),
    Encoding("MPEG-4 part 2", "avi", "mpeg4", "mpeg4"),
    Encoding("MPEG-4 part 2, B-frames", "mp4", "mpeg4", "mpeg4", {"bf": "2", "g": "100"}),
    Encoding("MPEG-2, program stream", "mpg", "mpeg2video", "mpeg2video"),
    Encoding("MPEG-2, transport stream", "ts", "mpeg2video", "mpeg2video", {"bf": "2"}),
    _intra("Motion JPEG, AVI", "avi", "mjpeg", "mjpeg", "yuvj420p"),
    _intra("Motion JPEG, QuickTime", "mov", "mjpeg", "mjpeg", "yuvj420p"),
    _intra("ProRes", "mov", "prores_ks", "prores", "yuv422p10le"),
    _intra("ProRes, Matroska", "mkv", "prores_ks", "prores", "yuv422p10le"),
    Encoding("DV, AVI", "avi", "dvvideo", "dvvideo", {}, "yuv420p", (720, 576), fps=25),
    Encoding("DV, QuickTime", "mov", "dvvideo", "dvvideo", {}, "yuv420p", (720, 576), fps=25),
    Encoding("Sorenson H.263", "flv", "flv", "flv1"),
    Encoding("H.263", "3gp", "h263", "h263", {}, "yuv420p", (352, 288)),
    Encoding("MS MPEG-4 v3", "avi", "msmpeg4", "msmpeg4v3"),
    Encoding("variable frame rate", "mp4", "libx264", "h264", FAST, ticks=_every_other_later),
    Encoding("variable frame rate, Matroska", "mkv", "libx264", "h264", FAST, ticks=_every_other_later),
    Encoding("starts late", "mp4", "libx264", "h264", FAST, ticks=lambda number: number + 150),
    Encoding("starts late, transport stream", "ts", "libx264", "h264", FAST, ticks=lambda number: number + 150),
    Encoding("starts before zero", "mov", "libx264", "h264", FAST, ticks=lambda number: number - 15),
    Encoding("rotated", "mp4", "libx264", "h264", FAST, rotation_deg=90),
)


def write(path: Path, encoding: Encoding, frames: Iterable[BgrImage]) -> None:
    """Encodes the frames, scaled to the encoding's size."""
    base = Fraction(1, encoding.fps)
    with av.open(str(path), "w", options=dict(encoding.container)) as container:
        stream = cast(
            "VideoStream",
            container.add_stream(encoding.encoder, rate=encoding.fps, options=dict(encoding.options)),
        )
        stream.width, stream.height = encoding.size_px
        stream.pix_fmt = encoding.pixels
        stream.codec_context.time_base = base
        if encoding.rotation_deg:
            stream.set_display_rotation(-encoding.rotation_deg)
        for number, image in enumerate(frames):
            scaled = np.asarray(cv2.resize(image, encoding.size_px, interpolation=cv2.INTER_AREA), np.uint8)
            frame = av.VideoFrame.from_ndarray(scaled, format="bgr24").reformat(format=encoding.pixels)
            frame.pts, frame.time_base = encoding.ticks(number), base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
