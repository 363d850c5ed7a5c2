"""One sentence for the uploader for each reason why a video was turned away. Pure; the docs' table is held to it."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import Reason

ADVICE: Mapping[Reason, str] = {
    Reason.EMPTY_FILE: "The file is empty: upload it again.",
    Reason.NOT_A_VIDEO: "The file is not a video, whatever its name says: upload the video itself.",
    Reason.NO_VIDEO_STREAM: "The file has sound or a cover picture but no moving pictures: upload the video itself.",
    Reason.UNSUPPORTED_CODEC: "The video's format is not accepted: convert it to H.264 in MP4 and upload that.",
    Reason.NO_FRAMES: "The video has no pictures: record or export it again.",
    Reason.TRUNCATED: "The file ends early: upload it again.",
    Reason.CORRUPT: "The file is damaged and nothing in it can be seen: upload it again or export it anew.",
    Reason.TOO_LARGE: "The file is too large, or claims to hold more than is accepted: shorten or compress it.",
    Reason.TOO_LONG: "The video is too long: cut it into shorter parts.",
    Reason.TOO_MANY_PIXELS: "The video's pictures are too large: export it at a lower resolution.",
    Reason.NOT_FOUND: "The file is no longer there: upload it again.",
    Reason.SUPERSEDED: "The file was replaced by another version meanwhile: that one is looked at.",
    Reason.DECODE_TIMEOUT: "The video takes too long to read: convert it to H.264 in MP4 and upload that.",
    Reason.DECODER_CRASHED: "The video could not be read: convert it to H.264 in MP4 and upload that.",
}


def advice(reason: str) -> str | None:
    """The sentence for a reason's word; None for reasons that are not about an uploaded file."""
    try:
        return ADVICE.get(Reason(reason))
    except ValueError:
        return None
