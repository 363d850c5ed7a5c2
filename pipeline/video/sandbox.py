"""A pool of decoder children, as the parent sees it: uploaded bytes are parsed and decoded only in them.

Threat model: a child may be taken over by the video that it decodes. So it gets no secret, no file and no
network address; it asks for byte ranges, which the parent checks and reads; and what it reports is
bounded and checked value by value. Pixels come back in memory that the parent made and reads with `pread`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Self, TypeVar

import numpy as np

from pipeline.errors import PermanentError, Reason, TransientError
from pipeline.media import BgrImage, Extraction, ExtractionCost, Keyframe, KeyframeSettings
from pipeline.video import wire
from pipeline.video.children import NURSERY, Child, Nursery
from pipeline.video.declared import suffix_of
from pipeline.video.limits import Limits
from pipeline.video.report import (
    Probe,
    Report,
    ReportError,
    integer,
    number,
    read_keyframe,
    read_probe,
    read_rejection,
    read_report,
    text,
)
from pipeline.video.report import sequence as checked_list
from pipeline.video.source import ByteRange, Source

Result = TypeVar("Result")
_MAX_REQUESTS = 200_000
_DAMAGED = "damaged"


class DecoderPool:
    """Up to `size` children, started when first needed and kept over many videos. Thread-safe.

    `nursery` is the module that children are forked by; tests give one whose children misbehave.
    """

    def __init__(self, size: int, limits: Limits | None = None, *, nursery: str = NURSERY) -> None:
        self._limits = limits or Limits()
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._children = 0
        self._is_closed = False
        self._nursery = Nursery(nursery)

    def probe(self, source: Source) -> Probe:
        """What the index of `source` says, without decoding pictures. Raises as `extract` does."""
        return self._with_child(lambda child: _Conversation(child, source, KeyframeSettings(), self._limits).probe())

    def extract(self, source: Source, settings: KeyframeSettings) -> Extraction:
        """The keyframes of `source`; waits for a free child.

        Raises PermanentError when the video is at fault, TransientError with DECODE_TIMEOUT or DECODER_CRASHED when
        the child had to be given up, and whatever `source` raised while its bytes were read.
        """
        return self._with_child(lambda child: _Conversation(child, source, settings, self._limits).extract())

    def _with_child(self, work: Callable[[Child], Result]) -> Result:
        with self._free:
            child = self._take()
            try:
                return work(child)
            finally:
                self._give_back(child)

    @property
    def limits(self) -> Limits:
        return self._limits

    def layers(self) -> tuple[str, ...]:
        """How a child of this pool is confined, as it says itself: which of `confine.LAYERS` are in force."""
        with self._free:
            child = self._take()
            child.is_trusted = True
            self._give_back(child)
            return child.layers

    def _take(self) -> Child:
        with self._lock:
            if self._is_closed:
                raise TransientError(Reason.INTERNAL_ERROR, "the decoder pool is closed")
            idle = self._idle.pop() if self._idle else None
            self._children += idle is None
        if idle is not None and idle.is_alive():
            return idle
        if idle is not None:
            idle.close()  # it ended while idle (the kernel was short of memory, say): no video's fault
        try:
            return Child(self._nursery, self._limits)
        except (OSError, wire.WireError, ReportError) as error:
            self._one_less()
            raise TransientError(Reason.INTERNAL_ERROR, f"no decoder process could be started: {error}") from error

    def _give_back(self, child: Child) -> None:
        with self._lock:
            if child.is_trusted and child.videos < self._limits.videos_per_child and not self._is_closed:
                self._idle.append(child)
                return
        child.close()
        self._one_less()

    def _one_less(self) -> None:
        with self._lock:
            self._children -= 1
            is_over = self._is_closed and not self._children
        if is_over:
            self._nursery.close()

    def close(self) -> None:
        """Ends the idle children; busy ones end with their video."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._children -= len(idle)
            is_over = not self._children
        for child in idle:
            child.close()
        if is_over:
            self._nursery.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Conversation:
    """One video's exchange with a child. The child is trusted again only after a proper end of a sound video."""

    def __init__(self, child: Child, source: Source, settings: KeyframeSettings, limits: Limits) -> None:
        self._child, self._source, self._settings, self._limits = child, source, settings, limits
        self._deadline = wire.Deadline(limits.wall_s)  # the source's own time is not charged to the child
        self._may_read_bytes = 2 * source.size_bytes + limits.read_slack_bytes
        self._read_bytes = self._ranges = self._requests = 0

    def extract(self) -> Extraction:
        start_s = time.thread_time()
        return self._guarded(lambda: self._extract(start_s))

    def probe(self) -> Probe:
        return self._guarded(self._probe)

    def _guarded(self, exchange: Callable[[], Result]) -> Result:
        """Carries the exchange out; what a child must not do becomes an error about its video."""
        child = self._child
        child.is_trusted = False
        child.videos += 1
        try:
            return exchange()
        except TimeoutError as error:
            child.kill()
            detail = f"decoding took longer than {self._limits.wall_s:g} s"
            raise TransientError(Reason.DECODE_TIMEOUT, detail) from error
        except wire.WireError as error:
            raise self._crash(str(error), child.kill()) from error
        except ReportError as error:
            child.kill()
            raise self._crash(str(error), 0) from error
        finally:
            child.stderr_tail()

    def _request(self, task: str) -> None:
        request = {
            "task": task,
            "size_bytes": self._source.size_bytes,
            "settings": asdict(self._settings),
            "limits": asdict(self._limits),
            "suffix": suffix_of(self._source.name),
        }
        wire.send(self._child.connection, request, self._deadline)

    def _rejected(self, message: Mapping[str, Any]) -> PermanentError:
        rejection = read_rejection(message)
        self._child.is_trusted = rejection.reason is not Reason.CORRUPT
        return rejection

    def _probe(self) -> Probe:
        self._request("probe")
        while True:
            message, _ = wire.receive(self._child.connection, self._deadline, 0)
            match message.get("kind"):
                case "read":
                    self._serve(message)
                case "probed":
                    probe = read_probe(message, self._limits)
                    self._child.is_trusted = True
                    return probe
                case "rejected":
                    raise self._rejected(message)
                case "crashed":
                    raise ReportError(text(message.get("detail")))
                case _:
                    raise ReportError("an unexpected message")

    def _extract(self, start_s: float) -> Extraction:
        self._request("extract")
        report: Report | None = None
        shown: list[tuple[Keyframe, BgrImage]] = []
        while True:
            message, _ = wire.receive(self._child.connection, self._deadline, 0)
            match message.get("kind"):
                case "read":
                    self._serve(message)
                case "found" if report is None:
                    report = read_report(message, self._limits)
                case "image" if report is not None and len(shown) < max(1, self._settings.max_keyframes):
                    shown.append((read_keyframe(message, self._limits), self._image(message)))
                    wire.send(self._child.connection, {"kind": "next"}, self._deadline)
                case "done" if report is not None and shown:
                    self._child.is_trusted = not any(w.startswith(_DAMAGED) for w in report.warnings)
                    return self._extraction(report, shown, message, start_s)
                case "rejected":
                    raise self._rejected(message)
                case "crashed":
                    raise ReportError(text(message.get("detail")))
                case _:
                    raise ReportError("an unexpected message")

    def _serve(self, message: Mapping[str, Any]) -> None:
        """Reads what the child asks for, if it may have that."""
        size_bytes = self._source.size_bytes
        ranges = []
        for pair in checked_list(message.get("ranges"))[: wire.MAX_RANGES + 1]:
            offset_bytes, length_bytes = checked_list(pair, 2)
            wanted = ByteRange(integer(offset_bytes, 0, size_bytes), integer(length_bytes, 0, wire.MAX_PAYLOAD_BYTES))
            ranges.append(wanted)
        wanted_bytes = sum(wanted.length_bytes for wanted in ranges)
        self._requests += 1
        self._ranges += len(ranges)
        if (
            len(ranges) > wire.MAX_RANGES
            or wanted_bytes > wire.MAX_PAYLOAD_BYTES
            or self._requests > _MAX_REQUESTS
            or self._read_bytes > self._may_read_bytes
        ):
            raise ReportError("the decoder asked for too many bytes")
        parts = self._source.read_ranges(ranges)
        self._read_bytes += sum(map(len, parts))
        lengths = [len(part) for part in parts]
        wire.send(self._child.connection, {"kind": "data", "lengths": lengths}, self._deadline, parts)

    def _image(self, message: Mapping[str, Any]) -> BgrImage:
        """A copy of the pixels that the child left in the shared memory."""
        max_pixels = self._limits.max_image_pixels
        width_px = integer(message.get("width_px"), 1, max_pixels)
        height_px = integer(message.get("height_px"), 1, max_pixels)
        if width_px * height_px > max_pixels:
            raise ReportError("an image larger than allowed")
        image = np.empty((height_px, width_px, 3), np.uint8)
        if os.preadv(self._child.image_fd, [image.data.cast("B")], 0) != image.size:
            raise ReportError("an image cut short")
        return image

    def _extraction(
        self, report: Report, shown: list[tuple[Keyframe, BgrImage]], done: Mapping[str, Any], start_s: float
    ) -> Extraction:
        child_s = number(done.get("cpu_s"), 0.0, self._limits.cpu_s + 10.0)
        return Extraction(
            video=report.video,
            cuts_s=report.cuts_s,
            motion_s=report.motion_s,
            keyframes=tuple(keyframe for keyframe, _ in shown),
            images=tuple(image for _, image in shown),
            warnings=report.warnings,
            coverage=report.coverage,
            cost=ExtractionCost(
                cpu_s=child_s + time.thread_time() - start_s,
                bytes_read=self._read_bytes,
                file_bytes=self._source.size_bytes,
                ranges=self._ranges,
                frames_decoded=integer(done.get("frames_decoded"), 0, 2**31),
            ),
        )

    def _crash(self, cause: str, code: int) -> TransientError:
        """What to raise when the child died, of `code`, or talked nonsense and was ended; with its last words."""
        if code == -signal.SIGXCPU:
            return TransientError(
                Reason.DECODE_TIMEOUT, f"decoding took more than {self._limits.cpu_s:g} s of processor time"
            )
        ending = f" (ended by {signal.Signals(-code).name})" if code < 0 else ""
        words = self._child.stderr_tail()
        return TransientError(
            Reason.DECODER_CRASHED, f"the decoder failed: {cause}{ending}{': ' + words if words else ''}"
        )
