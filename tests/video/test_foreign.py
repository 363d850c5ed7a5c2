"""Samples of another codec are told by their first bytes, whatever an encoder puts before its slices."""

from __future__ import annotations

import itertools
from pathlib import Path

import av
import pytest

from pipeline.media import KeyframeSettings
from pipeline.video.extract import Extractor
from pipeline.video.foreign import is_foreign
from pipeline.video.limits import Limits
from pipeline.video.source import LocalSource
from tests.hostile.making import encode, pictures

_ENCODERS = {"h264": "libx264", "hevc": "libx265", "mpeg2video": "mpeg2video", "mpeg1video": "mpeg1video"}


def _samples(path: Path, encoder: str) -> list[bytes]:
    encode(path, pictures(40), encoder, options={"g": "12"})
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize(
    ("declared", "coded"), [*itertools.product(_ENCODERS, _ENCODERS), ("mpeg4", "mpeg4"), ("mpeg4", "h264")]
)
def test_only_samples_of_another_codec_are_foreign(tmp_path: Path, declared: str, coded: str) -> None:
    samples = _samples(tmp_path / "clip.ts", _ENCODERS.get(coded, coded))
    is_same = declared == coded or {declared, coded} == {"mpeg1video", "mpeg2video"}
    assert {is_foreign(declared, sample) for sample in samples} == {not is_same}


@pytest.mark.parametrize("sample", [b"", b"\0\0\1", b"\xff" * 50, b"\0\0\1\x09\xf0", b"\0\0\1\x67\x42\0\0\1\x68\xce"])
def test_what_holds_no_picture_is_not_called_foreign(sample: bytes) -> None:
    assert not is_foreign("h264", sample)


def _joined(path: Path, *encoders: str) -> Path:
    """One stream after the other under one PID, 50 pictures each."""
    parts = []
    for number, encoder in enumerate(encoders):
        part = encode(path.with_name(f"{number}.ts"), pictures(50), encoder, options={"g": "25"}, first_pts=50 * number)
        parts.append(part.read_bytes())
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("encoder", ["libx265", "mpeg2video"])
def test_what_is_coded_otherwise_in_mid_stream_counts_as_not_seen(tmp_path: Path, encoder: str) -> None:
    path = _joined(tmp_path / "joined.ts", "libx264", encoder, "libx264")
    with LocalSource(path) as source:
        found = Extractor(source, KeyframeSettings(), Limits()).findings()
    assert 0.5 < found.coverage < 0.75
    assert any(warning.startswith("another codec: ") for warning in found.warnings)
