from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline.errors import PermanentError, Reason
from pipeline.video.index import SampleIndex
from pipeline.video.limits import Limits
from pipeline.video.opening import read_index
from pipeline.video.source import LocalSource
from tests import clips


def index_of(path: Path, limits: Limits | None = None) -> SampleIndex:
    with LocalSource(path) as source:
        return read_index(source, limits or Limits())


def assert_equals_demux(index: SampleIndex, path: Path, *, offsets: bool) -> None:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert index.facts.codec == stream.codec_context.name
        assert index.facts.extradata == stream.codec_context.extradata
        assert index.facts.time_base == stream.time_base
    assert len(index) == len(packets)
    for column, expected in (
        (index.pts, [packet.pts for packet in packets]),
        (index.dts, [packet.dts for packet in packets]),
        (index.size_bytes, [packet.size for packet in packets]),
        (index.is_key, [packet.is_keyframe for packet in packets]),
        (index.is_shown, [not packet.is_discard for packet in packets]),
    ):
        np.testing.assert_array_equal(column, expected)
    if offsets:
        np.testing.assert_array_equal(index.offset_bytes, [packet.pos for packet in packets])


@pytest.mark.parametrize("flags", ["", "faststart"])
def test_an_mp4s_table_equals_ffmpegs_demuxer_with_b_frames_and_edit_lists(tmp_path: Path, flags: str) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 70, container_options={"movflags": flags} if flags else {})
    index = index_of(path)
    assert_equals_demux(index, path, offsets=True)
    assert index.duration_s == pytest.approx(70 / 30)
    assert index.t_s[index.is_shown].min() == 0
    assert (index.dts < index.pts).any()  # there are B-frames


def test_negative_composition_offsets_shift_the_decoding_times_as_ffmpeg_does(tmp_path: Path) -> None:
    options = {"movflags": "negative_cts_offsets", "use_editlist": "0"}
    path = clips.write_numbered(tmp_path / "a.mp4", 40, container_options=options)
    assert_equals_demux(index_of(path), path, offsets=True)


def test_an_edit_list_that_starts_later_hides_frames_and_moves_the_start(tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 60)
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 12
    length, start = struct.unpack_from(">Ii", data, at)
    later = start + 10 * 512  # ten frames at a time base of 1/15360
    struct.pack_into(">Ii", data, at, length - 333, later)
    path.write_bytes(data)
    index = index_of(path)
    assert int((~index.is_shown).sum()) == 10
    assert index.t_s[index.is_shown].min() == 0
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
    shown = sorted(packet.pts for packet in packets if packet.pts is not None and not packet.is_discard)
    assert sorted(index.pts[index.is_shown].tolist()) == shown


@pytest.mark.parametrize("suffix", [".mkv", ".ts", ".avi", ".flv"])
def test_containers_without_a_readable_index_are_demuxed_exactly(tmp_path: Path, suffix: str) -> None:
    path = clips.write_numbered(tmp_path / f"a{suffix}", 70)
    index = index_of(path)
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
        np.testing.assert_array_equal(index.size_bytes, [packet.size for packet in packets])
        np.testing.assert_array_equal(index.is_key, [packet.is_keyframe for packet in packets])
        known = [packet.pts is not None for packet in packets]
        np.testing.assert_array_equal(index.pts[known], [p.pts for p in packets if p.pts is not None])
        assert all(index.payloads[number] == bytes(packet) for number, packet in enumerate(packets))
    assert index.duration_s == pytest.approx(70 / 30, abs=0.1)


def test_a_fragmented_mp4_is_demuxed(tmp_path: Path) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"}
    path = clips.write_numbered(tmp_path / "a.mp4", 60, container_options=options)
    index = index_of(path)
    assert_equals_demux(index, path, offsets=False)
    assert len(index.payloads) == 60


def test_packets_beyond_the_memory_budget_are_dropped_but_keys(tmp_path: Path) -> None:
    path = clips.write_numbered(tmp_path / "a.mkv", 90, options={"preset": "veryfast", "g": "10"})
    index = index_of(path, Limits(retained_bytes=15_000))
    assert sum(map(len, index.payloads.values())) <= 15_000
    assert 0 < len(index.payloads) < 90
    assert index.is_key[list(index.payloads)].all()


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
@pytest.mark.parametrize("rotation_deg", [0, 90, 180, 270])
def test_rotation_is_clockwise_in_every_container(tmp_path: Path, suffix: str, rotation_deg: int) -> None:
    path = clips.write_numbered(tmp_path / f"a{suffix}", 5, rotation_deg=rotation_deg)
    index = index_of(path)
    assert index.facts.rotation_deg == rotation_deg
    assert index.display_size_px == ((180, 320) if rotation_deg % 180 else (320, 180))


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [("libx265", ".mp4"), ("mpeg4", ".mp4"), ("libvpx-vp9", ".webm"), ("mjpeg", ".mov"), ("libsvtav1", ".mp4")],
)
def test_other_codecs_are_indexed(tmp_path: Path, codec: str, suffix: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this build of FFmpeg has no {codec}")
    options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    path = clips.write_numbered(tmp_path / f"a{suffix}", 12, codec=codec, options=options)
    index = index_of(path)
    assert len(index) == 12
    assert index.is_key[0]


def test_sound_without_pictures_is_no_video(tmp_path: Path) -> None:
    for suffix in (".m4a", ".mp4", ".mkv"):
        with pytest.raises(PermanentError) as raised:
            index_of(clips.write_audio_only(tmp_path / f"a{suffix}"))
        assert raised.value.reason is Reason.NO_VIDEO_STREAM


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_file_bytes=100), Reason.TOO_LARGE),
        (Limits(max_moov_bytes=100), Reason.TOO_LARGE),
        (Limits(max_samples=10), Reason.TOO_LARGE),
        (Limits(max_duration_s=0.5), Reason.TOO_LONG),
        (Limits(max_pixels=1000), Reason.TOO_MANY_PIXELS),
    ],
)
def test_what_exceeds_a_limit_says_which(tmp_path: Path, limits: Limits, reason: Reason) -> None:
    path = clips.write_numbered(tmp_path / "a.mp4", 30)
    with pytest.raises(PermanentError) as raised:
        index_of(path, limits)
    assert raised.value.reason is reason


def test_a_truncated_file_with_its_index_first_keeps_what_is_there(tmp_path: Path) -> None:
    whole = clips.write_numbered(tmp_path / "a.mp4", 90, container_options={"movflags": "faststart"})
    index = index_of(clips.truncated(whole, tmp_path / "b.mp4", 0.6))
    assert 0.2 < index.is_readable.mean() < 0.8
    assert index.warnings[0].startswith("truncated: ")


def test_an_index_cut_away_is_truncation(tmp_path: Path) -> None:
    whole = clips.write_numbered(tmp_path / "a.mp4", 90)
    with pytest.raises(PermanentError) as raised:
        index_of(clips.truncated(whole, tmp_path / "b.mp4", 0.6))
    assert raised.value.reason is Reason.TRUNCATED


@pytest.mark.parametrize("delta", [0, 2**31 - 1, 2**32 - 1])
def test_odd_durations_of_samples_are_no_trouble(tmp_path: Path, delta: int) -> None:
    data = bytearray(clips.write_numbered(tmp_path / "a.mp4", 20).read_bytes())
    struct.pack_into(">I", data, data.index(b"stts") + 16, delta)
    (tmp_path / "b.mp4").write_bytes(data)
    assert len(index_of(tmp_path / "b.mp4", Limits(max_duration_s=1e12))) == 20


def test_an_index_of_random_bytes_never_raises_anything_untyped(tmp_path: Path) -> None:
    data = clips.write_numbered(tmp_path / "a.mp4", 40).read_bytes()
    at = data.index(b"moov")
    generator = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(data)
        for place in generator.integers(at + 4, len(data), 6):
            damaged[place] = generator.integers(0, 256)
        (tmp_path / "b.mp4").write_bytes(damaged)
        with contextlib.suppress(PermanentError):
            index_of(tmp_path / "b.mp4", Limits(max_samples=100_000))
