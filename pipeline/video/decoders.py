"""Codecs and the decoders that read them: FFmpeg's names for the two differ here and there."""

from __future__ import annotations

from typing import cast

import av
from av.video.codeccontext import VideoCodecContext

_DECODERS = {"av1": "libdav1d", "flv1": "flv", "msmpeg4v3": "msmpeg4"}
"""FFmpeg's own decoder named av1 only drives hardware."""
_CODECS = {"libdav1d": "av1", "libvpx": "vp8", "libvpx-vp9": "vp9", "flv": "flv1", "msmpeg4": "msmpeg4v3"}


def open_decoder(codec: str) -> VideoCodecContext:
    """A decoder of one thread for `codec`, which must be one of `index.CODECS`."""
    # PyAV types `create` by codec name; every name in CODECS is a video codec.
    context = cast("VideoCodecContext", av.CodecContext.create(_DECODERS.get(codec, codec), "r"))
    context.thread_count = 1
    return context


def codec_of(decoder: str) -> str:
    """The codec that a decoder of FFmpeg reads."""
    return _CODECS.get(decoder, decoder)
