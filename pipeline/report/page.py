"""Result documents → one self-contained HTML page.

The page asks for nothing: style and script stand in it and are the only ones that its Content-Security-Policy
lets run, by their hashes. Everything out of a document is text to Jinja2, escaped on output.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from pipeline.document import Document
from pipeline.report.bars import Amount, Chart, log_chart
from pipeline.report.decisions import ANSWERS
from pipeline.report.pictures import Album, ReadImage, cards_per_video
from pipeline.report.reading import items, text
from pipeline.report.totals import Totals, totals
from pipeline.report.view import VideoView, cost_view, questions_of, video_view
from pipeline.report.wording import bytes_text, plural, rejection_sentence, seconds_text, share_text, words

OPEN_SECTIONS = 5
"""Up to so many videos their sections stand open; beyond, the table is the way to them."""

MAX_VIDEOS_IN_FULL = 1_000
"""Videos beyond appear in totals and table only: a browser copes with no more sections."""


def render_report(
    documents: Sequence[Document], *, title: str, read_image: ReadImage, max_thumbnail_px: int = 480
) -> str:
    """`documents` as one HTML page.

    `read_image` maps a keyframe's `image` to its JPEG bytes, None where it is gone. Thumbnails are at most
    `max_thumbnail_px` on their longer side, and smaller the more there are, so that the page stays within
    `pictures.PAGE_BYTES` of them.
    """
    in_full = documents[:MAX_VIDEOS_IN_FULL]
    limit = cards_per_video(len(in_full))
    pictures = sum(min(limit, len(items(document.get("keyframes")))) for document in in_full)
    album = Album(read_image, pictures=pictures, max_side_px=max_thumbnail_px)
    videos = [
        video_view(document, number, album, limit if number <= len(in_full) else 0)
        for number, document in enumerate(documents, 1)
    ]
    sums = totals(documents)
    style, script = _packaged("report.css"), _packaged("report.js")
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=text(title),
            style=Markup(style),  # noqa: S704  our own file, hashed in the page's policy
            script=Markup(script),  # noqa: S704  likewise
            csp=_content_security_policy(style, script),
            videos=videos,
            in_full=videos[: len(in_full)],
            are_open=len(videos) <= OPEN_SECTIONS,
            questions=questions_of(videos),
            answers=ANSWERS,
            question_texts=_question_texts(videos),
            warned=sum(bool(video.warnings) for video in videos),
            states=list(dict.fromkeys((video.state, video.state_text) for video in videos)),
            sums=sums,
            costs=[cost_view(currency, money) for currency, money in sums.money.items()],
            funnel=_funnel(sums),
        )
    )


def _question_texts(videos: Sequence[VideoView]) -> dict[str, str]:
    return {decision.question: decision.text for video in videos for decision in video.decisions}


def _funnel(sums: Totals) -> Chart:
    """How few pictures each step leaves to the next."""
    counts = [
        ("Frames in the videos", sums.frames, "yardstick"),
        ("Frames decoded", sums.frames_decoded, "part"),
        ("Keyframes", sums.keyframes, "part"),
        *((f"Stage: {name}", seen, "part") for name, seen in sums.looked_at.items()),
        ("For people to look at", sums.for_people, "total"),
    ]
    return log_chart([Amount(label, value, f"{value:,}", kind) for label, value, kind in counts])


def _content_security_policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; img-src data:; style-src '{_source_hash(style)}'; script-src '{_source_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _source_hash(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode('ascii')}"


def _packaged(name: str) -> str:
    return resources.files("pipeline.report").joinpath(name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_packaged),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        words=words, bytes_text=bytes_text, seconds_text=seconds_text, rejection_sentence=rejection_sentence
    )
    environment.globals.update(plural=plural, share_text=share_text)
    return environment
