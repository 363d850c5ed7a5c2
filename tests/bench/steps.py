"""Where ours spends its processor time: the steps of an extraction, timed within this process.

Each function at the border of a step is wrapped, and its own time counted, without what it calls of other steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from pipeline.jpeg import encode_jpeg
from pipeline.media import KeyframeSettings
from pipeline.video import extract
from pipeline.video.extract import Extractor
from pipeline.video.limits import Limits
from pipeline.video.source import LocalSource

STEPS = ("index", "signals", "reads", "decode", "compare and plan", "choice", "upright BGR", "JPEG", "rest")
_BORDERS = {
    "read_index": "index",
    "signals": "signals",
    "thumbnail": "compare and plan",
    "next_runs": "compare and plan",
    "find_cuts": "compare and plan",
    "find_motion": "compare and plan",
    "choose_keyframes": "choice",
    "upright_image": "upright BGR",
}
"""By the names that `extract` knows them by."""
_METHODS = {("SampleReader", "read"): "reads", ("SampleDecoder", "decode"): "decode"}
_REPEATS = 3


@dataclass(slots=True)
class Profile:
    """Own seconds by step of one extraction, the compressed bytes that were decoded, and the images made."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))
    decoded_bytes: int = 0
    frames_decoded: int = 0
    images: int = 0
    _open: list[float] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start_s, self._open = time.process_time(), [*self._open, 0.0]
        try:
            yield
        finally:
            spent_s = time.process_time() - start_s
            inner_s = self._open.pop()
            self.seconds[name] += spent_s - inner_s
            if self._open:
                self._open[-1] += spent_s

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if name == "decode":
                self.decoded_bytes += sum(len(sample.payload) for sample in arguments[1])
            with self.step(name):
                return function(*arguments, **named)

        return timed


def profile(clip: Path) -> Profile:
    """The median run of three by its total."""
    runs = sorted((_once(clip) for _ in range(_REPEATS)), key=lambda run: run.total_s)
    return runs[len(runs) // 2]


def _once(clip: Path) -> Profile:
    found = Profile()
    with ExitStack() as stack:
        for name, step in _BORDERS.items():
            stack.enter_context(patch.object(extract, name, found.wrapped(step, getattr(extract, name))))
        for (owner, name), step in _METHODS.items():
            kind = getattr(extract, owner)
            stack.enter_context(patch.object(kind, name, found.wrapped(step, getattr(kind, name))))
        with LocalSource(clip) as source, found.step("rest"):
            extractor = Extractor(source, KeyframeSettings(), Limits())
            for _, image in extractor.images(extractor.findings().choices):
                found.images += 1
                with found.step("JPEG"):
                    encode_jpeg(image)
    found.frames_decoded = extractor.frames_decoded
    return found


@dataclass(frozen=True, slots=True)
class Pooled:
    """Medians over clips: milliseconds by step, MB decoded, ms a MB of decoding, frames, images."""

    clips: int
    steps_ms: dict[str, float]
    decoded_mb: float
    decode_ms_a_mb: float
    frames: float
    images: float


def pooled_profiles(profiles: Iterable[Profile]) -> Pooled:
    found = list(profiles)
    return Pooled(
        clips=len(found),
        steps_ms={step: 1000 * median(one.seconds[step] for one in found) for step in STEPS},
        decoded_mb=median(one.decoded_bytes / 1e6 for one in found),
        decode_ms_a_mb=median(1e9 * one.seconds["decode"] / max(1, one.decoded_bytes) for one in found),
        frames=median(one.frames_decoded for one in found),
        images=median(one.images for one in found),
    )
