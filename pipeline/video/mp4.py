"""The sample table of an MP4 or MOV file, read from its `moov` box with numpy and without FFmpeg.

Follows ISO/IEC 14496-12; where that leaves room, what FFmpeg's demuxer does, so that DTS and PTS equal its.
Fragmented files, several edits and several sample descriptions raise UnreadableMp4Error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PermanentError, Reason
from pipeline.video.boxes import UnreadableMp4Error, children, find, refuse_too_many_boxes
from pipeline.video.index import SampleIndex, StreamFacts
from pipeline.video.limits import Limits
from pipeline.video.references import refuse_other_files
from pipeline.video.sample_entry import SampleEntry, sample_entry

Int64s = NDArray[np.int64]
_IDENTITY = np.eye(2)
_LIE_S = 2.0
_LIE_SHARE = 0.1
_MAX_TICKS = 2**53
"""What is later is nonsense; sums and differences of what is not cannot leave 64 bits."""
_FAR = 2**62


@dataclass(frozen=True, slots=True)
class Movie:
    """What `mvhd` says: ticks per second and the picture matrix of the whole movie (2x2, float64)."""

    timescale: int
    matrix: NDArray[np.float64]


def mp4_index(moov: memoryview, file_bytes: int, limits: Limits) -> SampleIndex:
    """The sample table of the first enabled video track that has samples.

    Raises PermanentError (NO_VIDEO_STREAM, NO_FRAMES, CORRUPT, TOO_LARGE, UNSUPPORTED_CODEC) and
    UnreadableMp4Error.
    """
    try:
        return _index(moov, file_bytes, limits)
    except (struct.error, IndexError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise PermanentError(Reason.CORRUPT, f"the index (moov box) is damaged: {error}") from error


def _index(moov: memoryview, file_bytes: int, limits: Limits) -> SampleIndex:
    refuse_too_many_boxes(moov, limits)
    refuse_other_files(moov)
    track, others = _chosen_track(moov, limits)
    if find(moov, b"mvex") is not None:
        raise UnreadableMp4Error("movie fragments")
    if find(moov, b"cmov") is not None:
        raise UnreadableMp4Error("compressed moov")
    movie = _movie(moov)
    sample_table = _need(track, b"mdia", b"minf", b"stbl")
    entry = sample_entry(_need(sample_table, b"stsd"))
    if not entry.width_px or not entry.height_px:
        raise UnreadableMp4Error("a sample description without a size")
    timescale, claimed = _media_header(_need(track, b"mdia", b"mdhd"))
    size_bytes, claimed_count = _sizes(sample_table)
    count = len(size_bytes)
    if count == 0:
        raise PermanentError(Reason.NO_FRAMES, "the video track has no samples")
    offset_bytes = _offsets(sample_table, size_bytes)
    dts, last_delta = _decode_times(sample_table, count)
    composition = _composition_offsets(sample_table, count)
    media_pts = dts + composition
    edit = _edit(track, movie.timescale, timescale, limits)
    is_shown = (media_pts >= edit.start) & (media_pts < edit.end)
    if not is_shown.any():
        is_shown, edit = np.ones(count, bool), Edit(int(media_pts.min()), _FAR, 0)
    pts = media_pts - edit.start + edit.delay
    is_placed = offset_bytes >= 0
    if not is_placed.any():
        raise PermanentError(Reason.CORRUPT, f"the index lists {count} samples and puts none of them into the file")
    is_readable = is_placed & (offset_bytes <= file_bytes - size_bytes) & (size_bytes > 0)
    return SampleIndex(
        facts=_facts(entry, track, movie, timescale),
        offset_bytes=offset_bytes,
        size_bytes=size_bytes,
        dts=dts - edit.start + edit.delay - max(0, -int(composition.min())),
        pts=pts,
        is_key=_keys(sample_table, count),
        is_shown=is_shown,
        start_pts=int(pts[is_shown].min()),
        end_pts=int(pts[is_shown].max()) + max(1, last_delta),
        is_readable=is_readable,
        streams=tuple(_described(track) for kind, track in children(moov) if kind == b"trak"),
        warnings=(
            *_warnings(is_readable, is_placed, others),
            *_lies(count, claimed_count, (int(dts[-1]) + last_delta) / timescale, claimed / timescale),
        ),
    )


def _warnings(is_readable: NDArray[np.bool_], is_placed: NDArray[np.bool_], others: int) -> tuple[str, ...]:
    found = []
    missing = is_placed & ~is_readable
    if missing.any():
        found.append(f"truncated: {100 * missing.mean():.0f} % of the samples lie past the end of the file")
    if not is_placed.all():
        found.append(f"damaged: the index puts {100 * (1 - is_placed.mean()):.0f} % of the samples nowhere")
    if others:
        found.append(f"{others} more video stream(s) were not looked at")
    return tuple(found)


def _lies(count: int, claimed_count: int, length_s: float, claimed_s: float) -> Iterator[str]:
    """What the headers claim and the tables do not bear out; the tables are believed."""
    if claimed_count > count:
        yield f"the header claims {claimed_count} samples, {count} are listed"
    if claimed_s > length_s + max(_LIE_S, _LIE_SHARE * length_s):
        yield f"the header claims {claimed_s:.1f} s, the samples make {length_s:.1f} s"


def _need(data: memoryview, *path: bytes) -> memoryview:
    found = find(data, *path)
    if found is None:
        raise PermanentError(Reason.CORRUPT, f"the index lacks its {path[-1].decode()} box")
    return found


def _movie(moov: memoryview) -> Movie:
    mvhd = find(moov, b"mvhd")
    if mvhd is None:
        return Movie(1000, _IDENTITY)
    is_long = mvhd[0] == 1
    (timescale,) = struct.unpack_from(">I", mvhd, 20 if is_long else 12)
    return Movie(max(1, timescale), _matrix(mvhd, 48 if is_long else 36))


def _matrix(data: memoryview, at: int) -> NDArray[np.float64]:
    """The 2x2 part of a picture matrix, rows (a, b), (c, d): a point is a row vector times it."""
    a, b, _, c, d = struct.unpack_from(">5i", data, at)
    matrix = np.array([[a, b], [c, d]], np.float64) / 65536
    return matrix if np.linalg.det(matrix) != 0 else _IDENTITY


def _chosen_track(moov: memoryview, limits: Limits) -> tuple[memoryview, int]:
    """The first enabled video track with samples, else the first video track; and how many others there are."""
    tracks = [body for kind, body in children(moov) if kind == b"trak"]
    if len(tracks) > limits.max_streams:
        raise PermanentError(Reason.TOO_LARGE, f"{len(tracks)} streams exceed {limits.max_streams}")
    edits = sum(_edit_count(track) for track in tracks)
    if edits > limits.max_edits:
        raise PermanentError(Reason.TOO_LARGE, f"{edits} edits exceed {limits.max_edits}")
    chapters = _chapter_ids(tracks)
    videos = [
        track
        for track in tracks
        if (handler := find(track, b"mdia", b"hdlr")) is not None
        and bytes(handler[8:12]) == b"vide"
        and _track_id(track) not in chapters
    ]
    if not videos:
        raise PermanentError(Reason.NO_VIDEO_STREAM, "the file has no video track")
    with_samples = [track for track in videos if _sample_count(track) > 0] or videos
    for track in with_samples:
        if (count := _sample_count(track)) > limits.max_samples:
            raise PermanentError(Reason.TOO_LARGE, f"{count} samples exceed {limits.max_samples}")
    enabled = [track for track in with_samples if _need(track, b"tkhd")[3] & 1] or with_samples
    return enabled[0], len(with_samples) - 1


def _described(track: memoryview) -> str:
    """A track's kind and the code of its sample description, as people look them up: `vide avc1`."""
    handler = find(track, b"mdia", b"hdlr") or bytes(12)
    stsd = find(track, b"mdia", b"minf", b"stbl", b"stsd") or bytes(16)
    return b" ".join((bytes(handler[8:12]), bytes(stsd[12:16]))).decode("ascii", "backslashreplace").replace("\0", "?")


def _chapter_ids(tracks: Sequence[memoryview]) -> frozenset[int]:
    """The tracks that others name as their chapters: a chapter picture is no video."""
    ids = np.array([_track_id(track) for track in tracks], np.int64)
    found: set[int] = set()
    for track in tracks:
        if (chap := find(track, b"tref", b"chap")) is not None:
            named = np.frombuffer(chap, ">u4", len(chap) // 4)
            found.update(ids[np.isin(ids, named)].tolist())
    return frozenset(found)


def _track_id(track: memoryview) -> int:
    tkhd = _need(track, b"tkhd")
    return int(struct.unpack_from(">I", tkhd, 20 if tkhd[0] == 1 else 12)[0])


def _sample_count(track: memoryview) -> int:
    stsz = find(track, b"mdia", b"minf", b"stbl", b"stsz")
    return 0 if stsz is None or len(stsz) < 12 else int(struct.unpack_from(">I", stsz, 8)[0])


def _media_header(mdhd: memoryview) -> tuple[int, int]:
    """Ticks per second, and how many ticks the media claims to last; 0 where it does not say."""
    timescale, claimed = struct.unpack_from(*(">IQ", mdhd, 20) if mdhd[0] == 1 else (">II", mdhd, 12))
    is_unknown = claimed in {2**32 - 1, 2**64 - 1}
    return max(1, int(timescale)), 0 if is_unknown else int(claimed)


def _table(box: memoryview, columns: int) -> Int64s:
    """A counted table of uint32 in a full box as int64 (rows, columns); shorter where the box is."""
    (count,) = struct.unpack_from(">I", box, 4)
    rows = min(count, (len(box) - 8) // (4 * columns))
    return np.frombuffer(box, ">u4", rows * columns, 8).reshape(rows, columns).astype(np.int64)


def _places(box: memoryview) -> Int64s:
    """A counted table of uint64 in a full box; places beyond any file become one such place that int64 holds."""
    (count,) = struct.unpack_from(">I", box, 4)
    values = np.frombuffer(box, ">u8", min(count, (len(box) - 8) // 8), 8)
    return np.asarray(np.minimum(values, np.uint64(_FAR)), np.int64)


def _sizes(sample_table: memoryview) -> tuple[Int64s, int]:
    """The size of every sample that is listed, and how many the table claims."""
    stsz = find(sample_table, b"stsz")
    if stsz is None:
        raise UnreadableMp4Error("compact sample sizes (stz2)" if find(sample_table, b"stz2") else "no stsz")
    same_bytes, count = struct.unpack_from(">2I", stsz, 4)
    if same_bytes:
        return np.full(count, same_bytes, np.int64), count
    return np.frombuffer(stsz, ">u4", min(count, (len(stsz) - 12) // 4), 12).astype(np.int64), count


def _offsets(sample_table: memoryview, size_bytes: Int64s) -> Int64s:
    """Each sample's place in the file; -1 for samples that no chunk holds."""
    co64 = find(sample_table, b"co64")
    chunks = _places(co64) if co64 else _table(_need(sample_table, b"stco"), 1)[:, 0]
    runs = _table(_need(sample_table, b"stsc"), 3)
    offset_bytes = np.full(len(size_bytes), -1, np.int64)
    if not len(runs) or not len(chunks):
        return offset_bytes
    first = np.clip(runs[:, 0] - 1, 0, len(chunks))
    if np.any(np.diff(first) < 0):
        raise ValueError("stsc is out of order")
    per_chunk = np.repeat(np.minimum(runs[:, 1], len(size_bytes)), np.diff(np.append(first, len(chunks))))
    ends = np.minimum(np.cumsum(per_chunk), len(size_bytes))
    counts = np.diff(ends, prepend=0)
    held = int(ends[-1]) if len(ends) else 0
    before = np.cumsum(size_bytes) - size_bytes
    starts = np.minimum(ends - counts, len(size_bytes) - 1)
    offset_bytes[:held] = np.repeat(chunks[-len(counts) :] - before[starts], counts) + before[:held]
    return offset_bytes


def _expand(runs: Int64s, count: int) -> Int64s:
    """Run lengths (repeats, value) to exactly `count` values; the last value goes on where they are too few."""
    if not len(runs):
        return np.zeros(count, np.int64)
    repeats = np.minimum(runs[:, 0], count)
    ends = np.minimum(np.cumsum(repeats), count)
    values = np.repeat(runs[:, 1], np.diff(ends, prepend=0))
    return np.concatenate([values, np.full(count - len(values), runs[-1, 1])])


def _decode_times(sample_table: memoryview, count: int) -> tuple[Int64s, int]:
    """DTS of every sample, from 0, and the duration of the last one."""
    deltas = _expand(_table(_need(sample_table, b"stts"), 2), count)
    deltas = np.where(deltas >= 2**31, 1, deltas)  # negative deltas: FFmpeg takes them as 1
    return np.cumsum(deltas) - deltas, int(deltas[-1])


def _composition_offsets(sample_table: memoryview, count: int) -> Int64s:
    ctts = find(sample_table, b"ctts")
    if ctts is None:
        return np.zeros(count, np.int64)
    runs = _table(ctts, 2)
    runs[:, 1] = np.where(runs[:, 1] >= 2**31, runs[:, 1] - 2**32, runs[:, 1])
    return _expand(runs, count)


def _keys(sample_table: memoryview, count: int) -> NDArray[np.bool_]:
    """Sync samples and QuickTime's partial sync samples; all of them where the table is absent."""
    stss = find(sample_table, b"stss")
    if stss is None:
        return np.ones(count, bool)
    is_key = np.zeros(count, bool)
    for box in (stss, find(sample_table, b"stps")):
        if box is not None:
            numbers = _table(box, 1)[:, 0] - 1
            is_key[numbers[(numbers >= 0) & (numbers < count)]] = True
    if not is_key.any():
        is_key[0] = True
    return is_key


@dataclass(frozen=True, slots=True)
class Edit:
    """Media time [start, end) is shown, `delay` after the presentation begins; all in the track's ticks."""

    start: int
    end: int
    delay: int


def _edit_rows(elst: memoryview) -> tuple[struct.Struct, int]:
    """How a row of an edit list is packed, and how many rows there are: as many as claimed, or as fit."""
    row = struct.Struct(">QqhH" if elst[0] == 1 else ">IihH")
    (count,) = struct.unpack_from(">I", elst, 4)
    return row, min(count, (len(elst) - 8) // row.size)


def _edit_count(track: memoryview) -> int:
    elst = find(track, b"edts", b"elst")
    return 0 if elst is None or len(elst) < 8 else _edit_rows(elst)[1]


def _edit(track: memoryview, movie_timescale: int, timescale: int, limits: Limits) -> Edit:
    elst = find(track, b"edts", b"elst")
    if elst is None:
        return Edit(0, _FAR, 0)
    row, count = _edit_rows(elst)
    rows = [row.unpack_from(elst, 8 + i * row.size) for i in range(count)]
    real = [edit for edit in rows if edit[1] >= 0]
    if not real:
        return Edit(0, _FAR, 0)
    in_ticks = Fraction(timescale, movie_timescale)
    delay = round(sum(length for length, start, *_ in rows if start == -1) * in_ticks)
    if delay > _MAX_TICKS:
        raise PermanentError(Reason.CORRUPT, f"the edit list lets the video wait for {float(delay / timescale):.0f} s")
    if (shown_s := sum(edit[0] for edit in real) / movie_timescale) > limits.max_duration_s and len(real) > 1:
        raise PermanentError(Reason.TOO_LONG, f"the edits show {shown_s:.0f} s, more than {limits.max_duration_s:.0f}")
    if len(real) > 1 or rows[-1][1] == -1 or (real[0][2], real[0][3]) != (1, 0):
        raise UnreadableMp4Error("an edit list with several edits")
    length, start = real[0][0], min(real[0][1], _MAX_TICKS)
    end = start + round(length * in_ticks) if length else _FAR
    return Edit(start, min(end, _FAR), delay)


def _facts(entry: SampleEntry, track: memoryview, movie: Movie, timescale: int) -> StreamFacts:
    tkhd = _need(track, b"tkhd")
    at = 52 if tkhd[0] == 1 else 40
    (a, b), (c, d) = _matrix(tkhd, at) @ movie.matrix
    mirrored = a * d - b * c < 0
    turn = np.degrees(np.arctan2(-b, -a) if mirrored else np.arctan2(b, a))
    shown_width, shown_height = struct.unpack_from(">2I", tkhd, at + 36)
    aspect = entry.sample_aspect
    if aspect is None and shown_width and shown_height and entry.width_px and entry.height_px:
        aspect = Fraction(shown_width * entry.height_px, shown_height * entry.width_px)
    return StreamFacts(
        container="mp4",
        codec=entry.codec,
        extradata=entry.extradata,
        time_base=Fraction(1, timescale),
        width_px=entry.width_px,
        height_px=entry.height_px,
        sample_aspect=aspect or Fraction(1),
        rotation_deg=round(turn / 90) % 4 * 90,
        mirrored=bool(mirrored),
    )
