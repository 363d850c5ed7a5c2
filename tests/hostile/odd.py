"""The table of odd files: how each is made, and what must become of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import Reason
from tests import clips
from tests.hostile.distorting import (
    claimed_size,
    coded,
    cut_in_moov,
    cut_mdat,
    endless_fragmented,
    first_key_missing,
    gif,
    holding,
    huge_in_matroska,
    huge_jpegs,
    id3_with_cover,
    long_header,
    long_matroska,
    many_matroska_tracks,
    many_tracks,
    mdat_of_100_gb,
    million_samples,
    padded_to,
    shortened,
    slow_sample_table,
    sparse,
    sparse_matroska,
    still,
    two_descriptions,
    two_sizes,
    with_cover,
    with_cover_stream,
    written,
    zero_samples,
)
from tests.hostile.lying import (
    boxes_before_index,
    edited,
    empty_chunks,
    far_cluster,
    far_samples,
    long_script,
    many_chapters,
    many_tags,
    more_boxes,
    quick_matroska,
    quickest_clock,
    ten_placed,
    two_descriptions_of_many,
)
from tests.hostile.making import STBL, encode, patched, pictures, place, two_streams, with_timestamps, without_box

DAY_S = 86400


@dataclass(frozen=True, slots=True)
class Seen:
    """Keyframes come out: how many at least, of which size, with which beginnings of warnings, seen how much of."""

    keyframes: int = 1
    size_px: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()
    coverage: tuple[float, float] = (0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Odd:
    """`make` writes the file at the path it is given."""

    name: str
    suffix: str
    make: Callable[[Path], object]
    becomes: Reason | Seen


def odd_files() -> list[Odd]:
    return [*no_videos(), *streams(), *damaged(), *timestamps(), *shapes(), *claims(), *indices()]


def no_videos() -> Iterator[Odd]:
    yield Odd("empty", ".mp4", holding(b""), Reason.EMPTY_FILE)
    yield Odd("one byte", ".mp4", holding(b"x"), Reason.NOT_A_VIDEO)
    yield Odd("one zero byte", ".mp4", holding(b"\0"), Reason.NOT_A_VIDEO)
    yield Odd("text", ".mp4", holding(b"This is no video.\n" * 50), Reason.NOT_A_VIDEO)
    yield Odd("HTML", ".mp4", holding(b"<!DOCTYPE html><html><body>404</body></html>"), Reason.NOT_A_VIDEO)
    yield Odd("JPEG", ".mp4", holding(still(".jpg")), Reason.NOT_A_VIDEO)
    yield Odd("PNG", ".mp4", holding(still(".png")), Reason.NOT_A_VIDEO)
    yield Odd("GIF", ".gif", gif, Reason.NOT_A_VIDEO)
    yield Odd("zip", ".mp4", holding(b"PK\x03\x04" + bytes(2000)), Reason.NOT_A_VIDEO)
    yield Odd("random", ".mp4", holding(np.random.default_rng(5).bytes(50_000)), Reason.NOT_A_VIDEO)
    yield Odd("zeros", ".mp4", holding(bytes(50_000)), Reason.NOT_A_VIDEO)

    for suffix in (".m4a", ".mkv", ".ts", ".avi", ".flv"):
        yield Odd(f"audio only in {suffix}", suffix, clips.write_audio_only, Reason.NO_VIDEO_STREAM)
    yield Odd("audio with cover art, MP4", ".m4a", with_cover, Reason.NO_VIDEO_STREAM)
    yield Odd("audio with cover art, Matroska", ".mka", with_cover_stream, Reason.NO_VIDEO_STREAM)
    yield Odd("audio with cover art, MP3", ".mp3", holding(id3_with_cover()), Reason.NO_VIDEO_STREAM)


def streams() -> Iterator[Odd]:
    for suffix in (".mp4", ".mkv", ".ts"):
        yield Odd(
            f"two video streams in {suffix}",
            suffix,
            two_streams,
            Seen(size_px=(320, 180), warnings=("1 more video stream",)),
        )
    yield Odd(
        "two video streams, the second the default",
        ".mkv",
        lambda path: two_streams(path, default=1),
        Seen(size_px=(160, 90), warnings=("1 more video stream",)),
    )


def damaged() -> Iterator[Odd]:
    yield Odd("moov missing", ".mp4", written(lambda data: without_box(data, b"moov")), Reason.TRUNCATED)
    for length in range(100, 2001, 100):
        yield Odd(
            f"cut after {length} bytes, moov first",
            ".mp4",
            written(shortened(length), movflags="faststart"),
            Reason.TRUNCATED,
        )
        yield Odd(f"cut {length} bytes into a moov at the end", ".mp4", written(cut_in_moov(length)), Reason.TRUNCATED)
    for share, seen in ((0.1, (0.0, 0.3)), (0.5, (0.2, 0.7)), (0.9, (0.6, 0.95))):
        yield Odd(
            f"mdat cut at {share:.0%}",
            ".mp4",
            written(cut_mdat(share), movflags="faststart"),
            Seen(warnings=("truncated: ",), coverage=seen),
        )
        yield Odd(f"mdat cut at {share:.0%}, moov after it", ".mp4", written(cut_mdat(share)), Reason.TRUNCATED)
    yield Odd("mdat cut at 1 %", ".mp4", written(cut_mdat(0.01), movflags="faststart"), Reason.TRUNCATED)
    for suffix in (".mkv", ".avi", ".flv", ".ts"):
        for share in (0.1, 0.5, 0.9):
            becomes: Reason | Seen = Seen(warnings=("truncated: ",), coverage=(share - 0.1, share + 0.15))
            if suffix == ".ts" or (suffix, share) == (".flv", 0.9):
                becomes = Seen(coverage=(0.9, 1.0))  # nothing in the file says that there was more, or little is lost
            yield Odd(f"{suffix} cut at {share:.0%}", suffix, written(shortened(share)), becomes)
    yield Odd("zero frames", ".mp4", written(zero_samples), Reason.NO_FRAMES)
    yield Odd("zero frames, Matroska", ".mkv", holding(many_matroska_tracks(1)), Reason.NO_FRAMES)
    yield Odd("one frame", ".mp4", coded("libx264", count=1), Seen(keyframes=1))
    yield Odd("one frame, Matroska", ".mkv", coded("libx264", count=1), Seen(keyframes=1))
    yield Odd("one frame, TS", ".ts", coded("libx264", count=1), Seen(keyframes=1))
    for suffix in (".mp4", ".mkv", ".ts"):
        yield Odd(
            f"first key missing in {suffix}", suffix, first_key_missing, Seen(warnings=("gaps: ",), coverage=(0.6, 0.9))
        )


def timestamps() -> Iterator[Odd]:
    yield Odd(
        "no timestamps",
        ".ts",
        written(lambda data: with_timestamps(data, lambda *_: None)),
        Seen(warnings=("timestamps estimated",)),
    )
    yield Odd(
        "timestamps backwards",
        ".ts",
        written(lambda data: with_timestamps(data, lambda n, _: 90_000 * 10 - 3600 * n)),
        Seen(warnings=("timestamps out of order",), coverage=(0.0, 1.0)),
    )
    yield Odd("a clock of nanoseconds that the pictures ignore", ".mkv", written(quick_matroska), Seen())
    yield Odd(
        "timestamps wrap",
        ".ts",
        written(lambda data: with_timestamps(data, lambda n, old: old + (1 << 33) - 200_000)),
        Seen(),
    )
    yield Odd(
        "all timestamps the same",
        ".ts",
        written(lambda data: with_timestamps(data, lambda *_: 90_000)),
        Seen(warnings=("timestamps out of order",), coverage=(0.0, 1.0)),
    )
    for suffix in (".mp4", ".mkv", ".ts"):
        yield Odd(f"negative start in {suffix}", suffix, lambda path: encode(path, pictures(30), first_pts=-20), Seen())


def shapes() -> Iterator[Odd]:
    yield Odd("1x1", ".avi", coded("mjpeg", width_px=1, height_px=1, pix_fmt="yuvj444p"), Seen(size_px=(1, 1)))
    yield Odd("1x1, H.264", ".mp4", coded("libx264", width_px=1, height_px=1, pix_fmt="yuv444p"), Seen(size_px=(1, 1)))
    yield Odd("2x2, VP9", ".webm", coded("libvpx-vp9", width_px=2, height_px=2), Seen(size_px=(2, 2)))
    yield Odd(
        "853x481", ".mp4", coded("libx264", width_px=853, height_px=481, pix_fmt="yuv444p"), Seen(size_px=(853, 481))
    )
    yield Odd(
        "853x481, VP9", ".webm", coded("libvpx-vp9", width_px=853, height_px=481, count=3), Seen(size_px=(853, 481))
    )
    yield Odd("3840x2, very wide", ".mp4", coded("libx264", width_px=3840, height_px=2), Seen(size_px=(3840, 2)))
    yield Odd("2x3840, very tall", ".mp4", coded("libx264", width_px=2, height_px=3840), Seen(size_px=(2, 3840)))
    yield Odd("16384x16384 claimed", ".mp4", written(claimed_size(16384, 16384)), Reason.TOO_MANY_PIXELS)
    yield Odd("0x0 claimed", ".mp4", written(claimed_size(0, 0)), Seen(size_px=(320, 180)))
    yield Odd("16384x16384, said by both", ".mov", lambda path: huge_jpegs(path, honest=True), Reason.TOO_MANY_PIXELS)
    yield Odd(
        "16384x16384, hidden by the container",
        ".mov",
        lambda path: huge_jpegs(path, honest=False),
        Reason.TOO_MANY_PIXELS,
    )
    yield Odd("16384x16384, hidden by Matroska", ".mkv", huge_in_matroska, Reason.TOO_MANY_PIXELS)
    yield Odd("resolution changes in mid-stream", ".ts", two_sizes, Seen(size_px=(320, 180)))
    yield Odd("resolution changes, Matroska", ".mkv", two_descriptions, Seen(size_px=(320, 180)))
    yield Odd("alpha, VP9", ".webm", coded("libvpx-vp9", pix_fmt="yuva420p"), Seen(size_px=(320, 180)))
    yield Odd("alpha, ProRes 4444", ".mov", coded("prores_ks", pix_fmt="yuva444p10le"), Seen(size_px=(320, 180)))
    yield Odd("4:4:4", ".mp4", coded("libx264", pix_fmt="yuv444p"), Seen())
    yield Odd("4:2:2, 10 bit", ".mp4", coded("libx264", pix_fmt="yuv422p10le"), Seen())
    yield Odd("10 bit", ".mp4", coded("libx264", pix_fmt="yuv420p10le"), Seen())
    yield Odd("10 bit, HEVC", ".mp4", coded("libx265", pix_fmt="yuv420p10le"), Seen())
    yield Odd("RGB in H.264", ".mp4", coded("libx264rgb", pix_fmt="rgb24"), Seen())
    yield Odd("grey", ".mp4", coded("libx264", pix_fmt="gray"), Seen())
    yield Odd("interlaced", ".mp4", coded("libx264", options={"x264-params": "interlaced=1"}), Seen())
    yield Odd("interlaced, MPEG-2", ".mpg", coded("mpeg2video", options={"flags": "+ildct+ilme"}), Seen())
    yield Odd("lossless", ".mkv", coded("ffv1"), Reason.UNSUPPORTED_CODEC)
    yield Odd("raw pictures", ".avi", coded("rawvideo", count=3), Reason.UNSUPPORTED_CODEC)
    yield Odd("WMV", ".wmv", coded("wmv2"), Reason.UNSUPPORTED_CODEC)


def claims() -> Iterator[Odd]:
    yield Odd("1,000 streams", ".mp4", written(many_tracks(1000)), Reason.TOO_LARGE)
    yield Odd("1,000 streams, Matroska", ".mkv", holding(many_matroska_tracks(1000)), Reason.TOO_LARGE)
    yield Odd("100,000 streams, Matroska", ".mkv", holding(many_matroska_tracks(100_000)), Reason.TOO_LARGE)
    yield Odd(
        "24 hours by the sample table, in 1 MB",
        ".mp4",
        written(padded_to(10**6, slow_sample_table(DAY_S)), use_editlist="0"),
        Reason.TOO_LONG,
    )
    yield Odd(
        "24 hours by the headers, in 1 MB",
        ".mp4",
        written(padded_to(10**6, long_header(DAY_S))),
        Seen(warnings=("the header claims",)),
    )
    yield Odd(
        "24 hours claimed by Matroska",
        ".mkv",
        written(long_matroska(DAY_S)),
        Seen(warnings=("truncated: ",), coverage=(0.0, 0.02)),
    )
    yield Odd(
        "ten minutes claimed by Matroska",
        ".mkv",
        written(long_matroska(600)),
        Seen(warnings=("truncated: ",), coverage=(0.0, 0.02)),
    )
    yield Odd(
        "a million samples claimed",
        ".mp4",
        written(million_samples),
        Seen(warnings=("the header claims 1000000 samples",)),
    )
    yield Odd(
        "a million samples of 100 bytes claimed",
        ".mp4",
        written(lambda data: million_samples(data, each_bytes=100)),
        Reason.TRUNCATED,
    )
    yield Odd(
        "four thousand million samples claimed",
        ".mp4",
        written(lambda data: patched(data, place(data, *STBL, b"stsz")[0] + 8, ">I", 2**32 - 1)),
        Reason.TOO_LARGE,
    )
    yield Odd("sparse 100 GB", ".mp4", lambda path: sparse(path, 100 * 10**9), Reason.TOO_LARGE)
    yield Odd("sparse 15 GB", ".mp4", lambda path: sparse(path, 15 * 10**9), Reason.TRUNCATED)
    yield Odd("sparse 15 GB after a Matroska head", ".mkv", sparse_matroska, Seen(warnings=("damaged: ",)))
    yield Odd("100 GB of pictures claimed", ".mp4", written(mdat_of_100_gb), Reason.TRUNCATED)
    yield Odd("endless fragmented index", ".mp4", endless_fragmented(4_000_000_000, 1), Reason.CORRUPT)
    yield Odd("endless fragmented index in small parts", ".mp4", endless_fragmented(1_000_000, 500), Reason.TOO_LARGE)
    yield Odd("endless empty fragments", ".mp4", endless_fragmented(0, 200_000), Seen())


def indices() -> Iterator[Odd]:
    """Indices that hold too much, or numbers that overflow."""
    yield Odd("100,000 edits", ".mp4", written(edited([(40, 0)] * 100_000)), Reason.TOO_LARGE)
    yield Odd(
        "100 edits",
        ".mp4",
        written(edited([(400, 0)] * 100)),
        Seen(warnings=("timestamps out of order",), coverage=(0.5, 1.0)),
    )
    yield Odd("edits that repeat it for hours", ".mp4", written(edited([(200_000, 0)] * 100)), Reason.TOO_LONG)
    yield Odd("an edit that waits for 2**62", ".mp4", written(edited([(2**62, -1), (1000, 0)])), Reason.CORRUPT)
    yield Odd("an edit that begins at 2**63 - 1", ".mp4", written(edited([(1000, 2**63 - 1)])), Seen())
    yield Odd("an edit of 2**64 - 1", ".mp4", written(edited([(2**64 - 1, 0)])), Seen())
    yield Odd("a million boxes in the index", ".mp4", written(more_boxes(10**6, b"moov")), Reason.TOO_LARGE)
    yield Odd("a million boxes in a track", ".mp4", written(more_boxes(10**6, *STBL)), Reason.TOO_LARGE)
    yield Odd("1,000 boxes before the index", ".mp4", written(boxes_before_index(1000)), Seen())
    yield Odd("a million boxes before the index", ".mp4", written(boxes_before_index(10**6)), Reason.CORRUPT)
    yield Odd("two million chapters", ".mp4", written(many_chapters), Seen())
    yield Odd("samples at 2**63", ".mp4", written(far_samples), Reason.TRUNCATED)
    yield Odd("chunks without samples", ".mp4", written(empty_chunks), Reason.CORRUPT)
    yield Odd(
        "ten samples in chunks, the others in none",
        ".mp4",
        written(ten_placed),
        Seen(warnings=("damaged: the index puts 94 %",), coverage=(0.02, 0.1)),
    )
    yield Odd("2**32 - 1 ticks a second", ".mp4", written(quickest_clock, use_editlist="0"), Seen())
    yield Odd("two descriptions of many samples", ".mp4", written(two_descriptions_of_many), Reason.TOO_LARGE)
    for ticks in (2**63 - 1, 2**64 - 1):
        yield Odd(f"a cluster at {ticks}", ".mkv", holding(far_cluster(ticks)), Reason.CORRUPT)
    yield Odd("40,000 tags, Matroska", ".mkv", written(many_tags(40_000)), Reason.TOO_LARGE)
    yield Odd("100 tags, Matroska", ".mkv", written(many_tags(100)), Seen())
    yield Odd("40,000 entries of metadata, FLV", ".flv", written(long_script(40_000)), Reason.TOO_LARGE)
    yield Odd("100 entries of metadata, FLV", ".flv", written(long_script(100)), Seen())
    yield Odd("nothing but keys", ".mp4", coded("libx264", count=300, options={"g": "1"}), Seen())
