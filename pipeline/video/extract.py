"""From a source to its keyframes: index, plan, decode, choose. Runs in the child process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import av
import numpy as np

from pipeline.errors import PermanentError, Reason
from pipeline.media import BgrImage, Keyframe, KeyframeSettings, VideoInfo
from pipeline.video.compare import Picture
from pipeline.video.cuts import find_cuts
from pipeline.video.decode import CodedSample, KeptFrames, SampleDecoder, is_intra, thumbnail, upright_image
from pipeline.video.evidence import Evidence, Look, Run, Wish
from pipeline.video.findings import Cut
from pipeline.video.glance import Glance, glance
from pipeline.video.glanced import find_glanced_cuts, is_dense
from pipeline.video.header import coded_size_px
from pipeline.video.keyframes import Choice, choose_keyframes, reach, wanted_keyframes
from pipeline.video.limits import Limits
from pipeline.video.motion import Motion, find_motion
from pipeline.video.opening import read_index
from pipeline.video.plan import Budget, budget, cheap_frames, most_bytes_read, next_runs, read_gap_bytes, sparse_gops
from pipeline.video.samples import KEPT_BYTES, SampleReader
from pipeline.video.signals import Signals, signals
from pipeline.video.source import Source

_MAX_ROUNDS = 24
_WHOLE_SHARE = 0.9
_FRAME_SHARE = 0.048
_MIN_FRAMES_FOR_IMAGES = 12
_FRAMES_AN_IMAGE = 10
_PIXELS_OF_IMAGES = 24_000_000  # 72 MB: eleven of 1080p
_LONG_S, _KEPT_OF_LONG_BYTES = 600.0, 16 * 1024 * 1024
_BYTES_PER_PIXEL = 16  # of four frames or so


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything about a video but the pixels of its keyframes; `choices` say which samples show them."""

    video: VideoInfo
    cuts: tuple[Cut, ...]
    motion: tuple[Motion, ...]
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...]
    coverage: float


class Extractor:
    """One video's extraction; `frames_decoded` counts all frames that its decoders put out.

    `effort` multiplies the decoding budget: benchmarks show with it what more or less decoding gives.
    """

    def __init__(self, source: Source, settings: KeyframeSettings, limits: Limits, *, effort: float = 1.0) -> None:
        self._settings, self._limits, self._effort = settings, limits, effort
        self._index = read_index(source, limits)
        self._signals = signals(self._index)
        self._reader = self._sample_reader(source)
        self._evidence = Evidence()
        self._glances = 0
        facts, max_pixels = self._index.facts, limits.max_pixels
        self._keeps_frames = not self._signals.has_short_gops or is_dense(self._signals)
        self._frames = KeptFrames(_KEPT_OF_LONG_BYTES) if self._is_long else KeptFrames()
        self._analysis = SampleDecoder(facts, max_pixels=max_pixels, loop_filter=self._keeps_frames)
        self._final = SampleDecoder(facts, max_pixels=max_pixels, loop_filter=True)

    @property
    def _is_long(self) -> bool:
        """Whether so much is looked at that keeping what was seen would mostly keep what is not chosen."""
        return self._index.duration_s > _LONG_S

    def _sample_reader(self, source: Source) -> SampleReader:
        kept_bytes = _KEPT_OF_LONG_BYTES if self._is_long else KEPT_BYTES
        return SampleReader(source, self._index, max_kept_bytes=kept_bytes)

    @property
    def frames_decoded(self) -> int:
        return self._analysis.frames_decoded + self._final.frames_decoded + self._glances

    def findings(self) -> Findings:
        """Cuts, motion and the choice of keyframes. Raises TRUNCATED or CORRUPT when nothing can be decoded."""
        self._look()
        find = find_glanced_cuts if is_dense(self._signals) else find_cuts
        cuts = find(self._signals, self._evidence, is_final=True).cuts
        motion = find_motion(self._signals, self._evidence, cuts).motion
        frames_left, watched_left = self._frames_left()
        bytes_left = int(most_bytes_read(self._signals)) - self._reader.bytes_read
        choices = choose_keyframes(
            self._signals, self._evidence, cuts, motion, self._settings, frames_left, watched_left, bytes_left
        )
        if not choices:
            raise self._nothing_to_see()
        share = coverage(self._signals, self._evidence)
        return Findings(
            video=self._index.video_info(),
            cuts=cuts,
            motion=motion,
            choices=tuple(choices),
            warnings=self._warnings(share),
            coverage=share,
        )

    def _frames_left(self) -> tuple[int, int]:
        """How many frames images between keys may take: anywhere, and where pictures are small."""
        wanted = wanted_keyframes(self._index.duration_s, self._settings)
        usual = max(_MIN_FRAMES_FOR_IMAGES, int(_FRAME_SHARE * len(self._index)) - self.frames_decoded) - wanted
        usual = min(usual, _FRAMES_AN_IMAGE * wanted)
        return max(0, usual), max(0, usual, int(cheap_frames(self._signals)))

    def images(self, choices: Sequence[Choice]) -> Iterator[tuple[Keyframe, BgrImage]]:
        """Each chosen frame, upright, one at a time; a frame that now fails to decode is left out.

        Many images are made smaller, as whoever takes them holds them all.
        """
        self._frames.only(choice.sample for choice in choices)
        max_pixels = min(self._limits.max_image_pixels, _PIXELS_OF_IMAGES // max(1, len(choices)))
        for choice in choices:
            if frame := self._frames.get(choice.sample) or self._final_frame(choice):
                image = upright_image(frame, self._index.facts, max_pixels)
                yield choice.keyframe, image

    def _final_frame(self, choice: Choice) -> av.VideoFrame | None:
        path = reach(self._signals, choice.sample) or [choice.sample]
        coded = self._reader.read(path)
        run = [coded[sample] for sample in path if sample in coded]
        pts = choice.keyframe.pts
        wanted = frozenset([pts])
        frame = self._final.decode(run, wanted, skip_unreferenced=len(run) > 1).get(pts)
        if frame is None and choice.sample in self._evidence.exact:  # it took headers that only the other has seen
            frame = self._analysis.decode(run, wanted).get(pts)
        return frame

    def _look(self) -> None:
        wanted = wanted_keyframes(self._index.duration_s, self._settings)
        allowed = budget(self._signals, wanted, effort=self._effort)
        spent_bytes = 0
        for _ in range(_MAX_ROUNDS):
            left = Budget(
                decoded_bytes=allowed.decoded_bytes - spent_bytes,
                frames=allowed.frames - self.frames_decoded,
                ranges=allowed.ranges - self._reader.ranges,
                read_bytes=allowed.read_bytes - self._reader.bytes_read,
            )
            runs = next_runs(self._signals, self._evidence, left)
            if not runs:
                return
            self._reader.gap_bytes = read_gap_bytes(self._signals, left)
            spent_bytes += self._decode(runs)

    def _decode(self, wishes: Sequence[Wish]) -> int:
        """Decodes what is wished for into evidence; how many bytes that took."""
        runs = [wish for wish in wishes if isinstance(wish, Run)]
        looks = [wish for wish in wishes if isinstance(wish, Look)]
        whole = {sample for run in runs for sample in run.samples}
        heads = {sample: look.limit_bytes for look in looks for sample in look.samples if sample not in whole}
        coded = self._reader.read(whole, heads)
        for run in runs:
            self._evidence.add(run, *self._pictures(run, coded))
        for look in looks:
            self._evidence.add_glance(look, self._glance(look, coded))
        decoded = [sample for run in runs for sample in run.samples] + [look.sample for look in looks]
        return sum(len(coded[sample].payload) for sample in decoded if sample in coded)

    def _glance(self, look: Look, coded: Mapping[int, CodedSample]) -> Glance | None:
        if look.sample not in coded:
            return None
        payloads = [coded[sample].payload for sample in look.samples if sample in coded]
        is_whole = len(payloads[-1]) == self._index.size_bytes[look.sample]
        facts, max_pixels = self._index.facts, self._limits.max_pixels
        self._glances += 1
        seen = glance(facts, payloads[-1:], is_whole=is_whole, max_pixels=max_pixels)
        if seen is None and len(payloads) > 1:
            self._glances += 1
            seen = glance(facts, payloads, is_whole=is_whole, max_pixels=max_pixels)
        return seen

    def _pictures(self, run: Run, coded: Mapping[int, CodedSample]) -> tuple[dict[int, Picture], list[int]]:
        if run.key not in coded:
            return {}, []
        samples = [coded[sample] for sample in run.samples if sample in coded]
        frames = self._analysis.decode(samples, frozenset(sample.pts for sample in samples))
        by_sample = {s.number: frames[s.pts] for s in samples if s.pts in frames}
        pictures = {sample: Picture(thumbnail(frame)) for sample, frame in by_sample.items()}
        key_frame = by_sample.get(run.key)
        if self._keeps_frames and key_frame is not None:
            self._frames.keep(run.key, key_frame)
        return pictures, [run.key] if key_frame is not None and not is_intra(key_frame) else []

    def _nothing_to_see(self) -> PermanentError:
        """Why; MemoryError where a few frames would not even fit: decoders without memory call the data bad."""
        bytearray(_BYTES_PER_PIXEL * self._index.facts.width_px * self._index.facts.height_px)
        for sample in self._reader.read(self._signals.anchors[:1].tolist()).values():
            width_px, height_px = coded_size_px(self._index.facts, sample.payload)
            if width_px * height_px > self._limits.max_pixels:
                detail = f"frames of {width_px}x{height_px} pixels exceed {self._limits.max_pixels} pixels"
                return PermanentError(Reason.TOO_MANY_PIXELS, detail)
        if not self._index.is_readable.all():
            return PermanentError(Reason.TRUNCATED, "no frame of what the file holds could be decoded")
        return PermanentError(Reason.CORRUPT, "no frame could be decoded")

    def _warnings(self, share: float) -> tuple[str, ...]:
        found = list(self._index.warnings)
        if failed := len(self._evidence.failed):
            tried = failed + len(self._evidence.exact)
            found.append(f"damaged: {failed} of {tried} frames looked at could not be decoded")
        if sparse_gops(self._signals):
            found.append("few key frames: only the beginnings of long stretches were decoded")
        if not found and share < _WHOLE_SHARE:
            found.append(f"gaps: only {share:.0%} of the duration could be looked at")
        return tuple(found)


def coverage(found: Signals, evidence: Evidence) -> float:
    """The share of the duration, 0..1, that could be looked at.

    Lost are what comes before the first key, samples past the end of the file or of another codec, what follows a key
    that did not decode up to the next key, what an index says but the file lacks at its end, and, in GOPs beyond 20 s,
    what was not reached.
    """
    index = found.index
    is_lost = ~index.is_readable & ((index.offset_bytes >= 0) | (not index.payloads))
    is_lost[: int(index.is_key.argmax())] = True
    if index.is_foreign is not None:
        is_lost |= index.is_foreign
    for key in evidence.failed:
        is_lost[key : found.next_key(key)] = True
    for key, end in sparse_gops(found):
        reached = [sample for sample in evidence.exact if key <= sample < end]
        is_lost[max(reached, default=key) + 1 : end] = True
    shown = np.flatnonzero(index.is_shown)
    by_time = shown[np.argsort(index.pts[shown], kind="stable")]
    lengths = np.diff(np.append(index.pts[by_time], index.seen_end_pts)).astype(np.float64)
    if not index.payloads:
        seen = float(lengths[~is_lost[by_time]].sum())
    else:
        usual = float(np.median(lengths))
        lengths[:-1] = np.minimum(lengths[:-1], max(usual * 10, 1.0))  # holes; the last one is as long as it says
        seen = float(lengths[~is_lost[by_time]].sum())
    return float(np.clip(seen / max(1, index.end_pts - index.start_pts), 0.0, 1.0))
