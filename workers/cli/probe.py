"""`videosieve probe`: what we see in a file, without decoding pictures, and which limit or rule applies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pipeline.advice import advice
from pipeline.document import SCHEMA_VERSION
from pipeline.errors import PermanentError, Reason, TransientError, UserError
from pipeline.video.limits import Limits
from pipeline.video.report import Probe
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from workers.analysis import open_decoders
from workers.cli.console import stdout
from workers.settings import load_settings

_INDEX = {"table": "a table in the file", "packets": "none that can be used: the packets were read one by one"}
_CHARGED = {Reason.DECODE_TIMEOUT, Reason.DECODER_CRASHED}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def probe(file: Path, as_json: bool) -> None:
    """Show what is seen in FILE, and which limit or rule applies. Pictures are not decoded.

    A file that is turned away is a result like any other: exit code 0.
    """
    if not file.exists():
        raise UserError(Reason.BAD_INPUT, f"{file}: no such file")
    with open_decoders(load_settings().decoder, processes=1) as decoders:
        document = _document(file, decoders)
    if as_json:
        click.echo(json.dumps(document))
    else:
        stdout().print(_table(document))


def _document(file: Path, decoders: DecoderPool) -> dict[str, Any]:
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "path": str(file)}
    try:
        with LocalSource(file) as source:
            size_bytes = source.size_bytes
            found = decoders.probe(source)
    except (PermanentError, TransientError) as error:
        if isinstance(error, TransientError) and error.reason not in _CHARGED:
            raise
        rejected = {"reason": error.reason.value, "detail": error.detail, "advice": advice(error.reason)}
        return {**document, "rejected": rejected}
    return {
        **document,
        "video": _video(found),
        "streams": list(found.streams),
        "index": found.index,
        "keys": found.keys,
        "readable": round(found.readable, 4),
        "warnings": list(found.warnings),
        "limits": _used(found, size_bytes, decoders.limits),
    }


def _video(found: Probe) -> dict[str, Any]:
    video = found.video
    return {
        "container": video.container,
        "codec": video.codec,
        "duration_s": round(video.duration_s, 3),
        "frames": video.frames,
        "width_px": video.width_px,
        "height_px": video.height_px,
        "rotation_deg": video.rotation_deg,
        "time_base": str(video.time_base),
    }


def _used(found: Probe, size_bytes: int, limits: Limits) -> dict[str, dict[str, float]]:
    """How much of each limit the file takes."""
    video = found.video
    pairs: dict[str, tuple[float, float]] = {
        "file_bytes": (size_bytes, limits.max_file_bytes),
        "duration_s": (round(video.duration_s, 3), limits.max_duration_s),
        "pixels": (video.width_px * video.height_px, limits.max_pixels),
        "samples": (video.frames, limits.max_samples),
        "streams": (len(found.streams), limits.max_streams),
    }
    return {name: {"is": value, "max": greatest} for name, (value, greatest) in pairs.items()}


def _table(document: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False)

    def row(name: str, value: object) -> None:
        table.add_row(name, Text(str(value)))

    row("file", document["path"])
    if rejected := document.get("rejected"):
        row("turned away", rejected["reason"])
        row("because", rejected["detail"])
        row("advice", rejected["advice"])
        return table
    video = document["video"]
    row("container", video["container"])
    for number, stream in enumerate(document["streams"]):
        row("streams" if number == 0 else "", stream)
    row("codec", video["codec"])
    row("length", f"{video['duration_s']:.3f} s, {video['frames']} frames, {document['keys']} of them keys")
    turned = f", turned by {video['rotation_deg']}°" if video["rotation_deg"] else ""
    row("size", f"{video['width_px']}x{video['height_px']}{turned}")
    row("index", _INDEX.get(document["index"], document["index"]))
    row("readable", f"{document['readable']:.1%} of the samples")
    for name, limit in document["limits"].items():
        row(f"limit: {name}", f"{limit['is']:,} of {limit['max']:,}")
    for warning in document["warnings"]:
        row("warning", warning)
    return table
