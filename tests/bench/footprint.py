"""A long file, made by repeating a short one's packets: what its keyframes cost in memory, time and bytes.

    python -m tests.bench.footprint [--clip CLIP.mp4] [--hours 2] [--out DIR]

Measured twice: from disk, and from a server that answers ranged GETs as S3 does. Memory is the proportional set size
(PSS) of this process and all its descendants, from /proc/*/smaps_rollup, sampled all the while.
"""

from __future__ import annotations

import argparse
import http.server
import json
import multiprocessing
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import av
import cv2
import numpy as np

from pipeline.media import KeyframeSettings, ObjectRef
from pipeline.stores.aws import connect
from pipeline.stores.objects import ObjectStore
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource, Source
from tests.bench.corpus import CACHE, FULL, PAIR, folder_of
from tests.bench.measuring import descendants, once_from
from tests.bench.results import table

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
_SAMPLED_S = 0.05
_ALLOWED_MB = 400
_PATIENCE_S = 600.0
"""Instead of the usual 60 s, for machines that do other work; the table says how long it took."""
_TENTHS = 10
_NOT_COUNTED: set[str] = set()
"""Process ids of the servers: a store is not part of a worker."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Footprint:
    """`peak_mb` and `idle_mb` are PSS of the process tree; `widest_gap_s` is the longest stretch without a keyframe."""

    name: str
    minutes: float
    file_mb: float
    idle_mb: float
    peak_mb: float
    cpu_s: float
    wall_s: float
    mb_read: float
    ranges: int
    frames_decoded: int
    keyframes: int
    widest_gap_s: float
    tenths_shown: int


def repeat(clip: Path, target: Path, duration_s: float) -> None:
    """Writes the clip's video packets over and over, times counted on, until `duration_s` is reached."""
    with (
        av.open(str(clip), "r") as source,
        av.open(str(target), "w", format="mp4", options={"movflags": "faststart"}) as made,
    ):
        stream = source.streams.video[0]
        copied = made.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        held = [(bytes(p), p.pts or 0, p.dts or 0, p.duration or 0, p.is_keyframe) for p in packets]
        base = packets[0].time_base
        length = max(pts + duration for _, pts, _, duration, _ in held) - min(pts for _, pts, *_ in held)
        for turn in range(max(1, round(duration_s / float(length * base)))):
            for data, pts, dts, duration, is_key in held:
                packet = av.Packet(data)
                packet.stream, packet.time_base, packet.is_keyframe = copied, base, is_key
                packet.pts, packet.dts, packet.duration = pts + turn * length, dts + turn * length, duration
                made.mux(packet)


def _duration_s(path: Path) -> float:
    with av.open(str(path), "r") as container:
        return float((container.duration or 0) / av.time_base)


def _apart(function: Callable[..., _T], *arguments: object) -> _T:
    """What `function` returns in a process of its own: what FFmpeg keeps of a long file there is not counted here."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def tree_pss_mb() -> float:
    """Of this process and its descendants; those that end meanwhile count nothing."""
    counted = [pid for pid in ("self", *descendants("self")) if pid not in _NOT_COUNTED]
    return sum(map(_pss_mb, counted))


def _pss_mb(pid: str) -> float:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


@contextmanager
def peak_pss_mb() -> Iterator[list[float]]:
    """Samples until the block ends; the list holds the samples."""
    samples, is_over = [tree_pss_mb()], threading.Event()

    def sample() -> None:
        while not is_over.wait(_SAMPLED_S):
            samples.append(tree_pss_mb())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
        samples.append(tree_pss_mb())


class _RangedFile(http.server.BaseHTTPRequestHandler):
    """HEAD and ranged GET of one file, as S3 answers them."""

    protocol_version = "HTTP/1.1"

    def __init__(self, path: Path, *arguments: Any) -> None:
        self._path = path
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(200, self._path.stat().st_size)

    def do_GET(self) -> None:
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        size = self._path.stat().st_size
        last = min(last, size - 1)
        with self._path.open("rb") as file:
            file.seek(first)
            data = file.read(last - first + 1)
        self._answer(206, len(data), {"Content-Range": f"bytes {first}-{last}/{size}"})
        self.wfile.write(data)

    def _answer(self, status: int, length: int, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"ETag": '"1"', "Content-Length": str(length), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _serve(path: Path, port: Any) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_RangedFile, path)) as server:
        port.value = server.server_address[1]
        server.serve_forever()


@contextmanager
def ranged_source(path: Path) -> Iterator[Source]:
    """The file through the worker's own S3 source; the server is a process that is not counted."""
    context = multiprocessing.get_context("spawn")
    port = context.Value("i", 0)
    server = context.Process(target=_serve, args=(path, port), daemon=True)
    server.start()
    while not port.value and server.is_alive():
        time.sleep(0.01)
    _NOT_COUNTED.add(str(server.pid))
    endpoint_url = f"http://127.0.0.1:{port.value}"
    clients = connect(endpoint_url=endpoint_url, access_key_id="bench", secret_access_key="bench")
    store = ObjectStore(clients.s3)
    try:
        yield store.source(store.resolve(ObjectRef("bench", path.name)))
    finally:
        store.close()
        clients.close()
        server.terminate()
        server.join()


def measure(pool: DecoderPool, path: Path, source: Source, name: str) -> Footprint:
    idle_mb = tree_pss_mb()
    with peak_pss_mb() as samples:
        run = once_from(pool, source, KeyframeSettings(), tries=1)
    duration_s = _apart(_duration_s, path)
    times_s = [t_s for t_s, _ in run.keyframes]
    edges = np.diff([0.0, *times_s, duration_s])
    return Footprint(
        name=name,
        minutes=duration_s / 60,
        file_mb=path.stat().st_size / 1e6,
        idle_mb=idle_mb,
        peak_mb=max(samples),
        cpu_s=run.cpu_s,
        wall_s=run.wall_s,
        mb_read=run.bytes_read / 1e6,
        ranges=run.ranges,
        frames_decoded=run.frames_decoded,
        keyframes=len(times_s),
        widest_gap_s=float(edges.max()),
        tenths_shown=len({int(_TENTHS * t_s / duration_s) for t_s in times_s}),
    )


def _one(warm_up: Path, path: Path, *, is_ranged: bool) -> Footprint:
    """One file in a process that has seen only the short clip before."""
    cv2.setNumThreads(1)
    with ExitStack() as stack:
        pool = stack.enter_context(DecoderPool(1, Limits(wall_s=_PATIENCE_S)))
        with LocalSource(warm_up) as source:
            once_from(pool, source, KeyframeSettings(), tries=1)
        source_of = ranged_source if is_ranged else LocalSource
        how = "ranged GETs" if is_ranged else "from disk"
        return measure(pool, path, stack.enter_context(source_of(path)), f"{path.stem}, {how}")


def measured(clip: Path, hours: float, folder: Path) -> list[Footprint]:
    """The short clip, then the long file from disk and over ranges."""
    folder.mkdir(parents=True, exist_ok=True)
    long = folder / f"{clip.stem}-{hours:g}h.mp4"
    if not long.exists():
        _apart(repeat, clip, long.with_suffix(".part"), hours * 3600)
        long.with_suffix(".part").rename(long)
    runs = ((clip, False), (long, False), (long, True))
    return [_apart(partial(_one, is_ranged=is_ranged), clip, path) for path, is_ranged in runs]


def report(found: list[Footprint]) -> str:
    head = "file|minutes|MB|idle MB|peak MB|CPU s|wall s|MB read|ranges|frames|keyframes|widest gap s|tenths shown"
    rows = [head.split("|")]
    for one in found:
        sizes = (f"{value:.0f}" for value in (one.minutes, one.file_mb, one.idle_mb, one.peak_mb))
        costs = (f"{one.cpu_s:.2f}", f"{one.wall_s:.2f}", f"{one.mb_read:.1f}")
        counts = (str(one.ranges), str(one.frames_decoded), str(one.keyframes))
        rows.append([one.name, *sizes, *costs, *counts, f"{one.widest_gap_s:.0f}", f"{one.tenths_shown}/{_TENTHS}"])
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", type=Path, default=folder_of(FULL, PAIR) / "edit_web_1080p.mp4")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--out", type=Path, default=_DOCS)
    options = parser.parse_args()
    found = measured(options.clip, options.hours, CACHE / "long")
    print(report(found))  # noqa: T201 - the output
    peak_mb, is_spread = max(one.peak_mb for one in found), all(one.tenths_shown == _TENTHS for one in found[1:])
    holds = peak_mb < _ALLOWED_MB and is_spread
    options.out.mkdir(parents=True, exist_ok=True)
    words = f"Peak PSS below {_ALLOWED_MB} MB and keyframes in every tenth: {'yes' if holds else '**no**'}."
    source = "`python -m tests.bench.footprint`; PSS of the whole process tree."
    pages = ["# A two-hour file", source, report(found), words]
    (options.out / "footprint.md").write_text("\n\n".join(pages) + "\n")
    (options.out / "footprint.json").write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
