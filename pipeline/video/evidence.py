"""What has been decoded so far, as pictures to compare."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.video.compare import Change, Picture, change
from pipeline.video.glance import Glance


@dataclass(frozen=True, slots=True)
class Run:
    """Samples to decode in one go, in decoding order, from a key sample on.

    Where samples between them are left out, the decoder predicts from the wrong pictures: the result shows the old
    picture wherever a sample codes no new content. That is what tells a cut from motion, at the price of one
    frame: a cut's sample replaces the picture, any other leaves it standing. `is_patched` says so.
    """

    samples: tuple[int, ...]
    is_patched: bool = False

    @property
    def key(self) -> int:
        return self.samples[0]


@dataclass(frozen=True, slots=True)
class Look:
    """A sample to glance at (see `glance`), at most `limit_bytes` of it. The sample before it is read too: now and then
    the decoder needs a picture, whichever, to begin from."""

    sample: int
    limit_bytes: int = 1 << 30

    @property
    def samples(self) -> tuple[int, ...]:
        return (self.sample - 1, self.sample)


Wish = Run | Look


class Evidence:
    """Decoded pictures: `exact` by sample; those of patched runs by run; `glances` by sample, None where one failed.
    Comparisons are remembered."""

    def __init__(self) -> None:
        self.exact: dict[int, Picture] = {}
        self.not_intra: set[int] = set()
        self.failed: set[int] = set()
        self.done: set[Wish] = set()
        self.glances: dict[int, Glance | None] = {}
        self._patched: dict[tuple[Run, int], Picture] = {}
        self._changes: dict[tuple[int, int], Change] = {}

    def add(self, run: Run, pictures: Mapping[int, Picture], not_intra: Sequence[int] = ()) -> None:
        """Records what `run` gave; samples without a picture could not be decoded."""
        self.done.add(run)
        self.not_intra.update(not_intra)
        for position, sample in enumerate(run.samples):
            picture = pictures.get(sample)
            if position and run.is_patched:
                if picture is not None:
                    self._patched[run, sample] = picture
            elif picture is not None:
                self.exact[sample] = picture
            elif position == 0:
                self.failed.add(sample)

    def add_glance(self, look: Look, seen: Glance | None) -> None:
        self.done.add(look)
        self.glances[look.sample] = seen

    def change(self, before: int, after: int) -> Change:
        """Between two exactly decoded samples."""
        found = self._changes.get((before, after))
        if found is None:
            found = self._changes[before, after] = change(self.exact[before], self.exact[after])
        return found

    def at(self, run: Run, sample: int) -> Picture | None:
        """What a run showed at one of its samples."""
        is_patched = run.is_patched and sample != run.key
        return self._patched.get((run, sample)) if is_patched else self.exact.get(sample)

    def steps(self, run: Run) -> list[Change]:
        """The changes from each picture of a run to the next, as far as they were decoded."""
        pictures = [self.exact.get(run.key)]
        pictures += [
            self._patched.get((run, sample)) if run.is_patched else self.exact.get(sample) for sample in run.samples[1:]
        ]
        seen = [picture for picture in pictures if picture is not None]
        return [change(before, after) for before, after in itertools.pairwise(seen)]

    def across(self, run: Run) -> Change | None:
        """The change from the first picture of a run to its last; None where either is missing."""
        first, last = self.exact.get(run.key), self._patched.get((run, run.samples[-1]))
        if not run.is_patched:
            last = self.exact.get(run.samples[-1])
        return None if first is None or last is None else change(first, last)
