"""What glances say about a place that sizes made suspicious. Pure."""

from __future__ import annotations

from enum import Enum

import numpy as np

from pipeline.video.evidence import Evidence, Look
from pipeline.video.likely import Place
from pipeline.video.signals import Signals

_LOOK_BYTES, _LONG_LOOK_BYTES = 24_000, 12_000
_NEW_SCENE, _BACK_AGAIN = 0.85, 0.4
_FLASH_SAMPLES, _FLASH_RATIO, _FLASH_SHARE = 4, 1.4, 0.5
_AROUND_S, _INTO_BLEND_S = 0.12, (0.0, 0.15)
_BLEND_LEAST, _BLEND_SUM, _BLEND_CLEAR = 0.045, 0.13, 0.35
_LASTING_S = 0.17
_FADE_MOST, _FADE_LIKELY, _FADE_BLEND = 0.3, 0.6, 0.4
_VIOLENT = 0.3
_STRONG_KEY_RATIO = 2.4


class Kind(Enum):
    NONE, HARD, GRADUAL = range(3)


def looks(signals: Signals, place: Place) -> list[Look]:
    """What to look at to judge a place, only the beginning of each sample."""
    if place.is_gradual:
        shifts_s = (-_AROUND_S, _AROUND_S) if signals.has_short_gops else _INTO_BLEND_S
        samples = {_near(signals, place.t_s + shift_s) for shift_s in shifts_s}
    else:
        samples = {place.sample}
        if (end := _echo(signals, place.sample)) is not None:
            samples |= {end, _near(signals, place.t_s + _LASTING_S)}
    limit_bytes = _LOOK_BYTES if signals.has_short_gops else _LONG_LOOK_BYTES
    return [Look(sample, limit_bytes) for sample in sorted(samples)]


def _near(signals: Signals, at_s: float) -> int:
    """The non-key sample nearest to an instant; there is one where there are places."""
    usable = np.flatnonzero(~signals.index.is_key & signals.index.is_readable & signals.is_reference)
    return int(usable[np.abs(signals.t_s[usable] - at_s).argmin()])


def _echo(signals: Signals, sample: int) -> int | None:
    """The largest of the next samples, if it stands out as the end of a flash would."""
    index = signals.index
    after = np.arange(sample + 1, min(len(index), sample + 1 + _FLASH_SAMPLES))
    later = np.arange(sample + 1 + _FLASH_SAMPLES, min(len(index), sample + 1 + 3 * _FLASH_SAMPLES))
    after, later = after[~index.is_key[after] & index.is_readable[after]], later[~index.is_key[later]]
    if not len(after) or not len(later):
        return None
    largest = int(after[index.size_bytes[after].argmax()])
    return largest if index.size_bytes[largest] > _FLASH_RATIO * np.median(index.size_bytes[later]) else None


def judged(place: Place, intra: list[float], *, has_short_gops: bool = True) -> Kind:
    """What the shares of unpredicted blocks, in order of time, make of a place."""
    if place.is_gradual and not has_short_gops:
        return Kind.GRADUAL if max(intra) > _BLEND_CLEAR else Kind.NONE
    if place.is_gradual:
        is_blend = min(intra) > _BLEND_LEAST and sum(intra) > _BLEND_SUM
        is_fade = max(intra) > _FADE_MOST and place.likelihood > _FADE_LIKELY
        return Kind.GRADUAL if is_blend or is_fade else Kind.NONE
    first, *later = intra
    if first > _NEW_SCENE and all(other < _BACK_AGAIN for other in later):
        return Kind.HARD
    is_lasting = bool(later) and min(later) > _BACK_AGAIN
    is_fade = place.blend > _FADE_BLEND  # from black on little is predicted, for as long as a flash lasts
    return Kind.GRADUAL if first > _BACK_AGAIN and (is_lasting or is_fade) else Kind.NONE


def unpredicted(evidence: Evidence, wanted: list[Look]) -> list[float] | None:
    """The shares of unpredicted blocks of what was looked at; None where a look failed or was not made."""
    seen = [evidence.glances.get(look.sample) for look in wanted]
    return [glance.intra for glance in seen if glance is not None] if seen and all(seen) else None


def look_before(signals: Signals, key: int) -> Look | None:
    """At the last sample before a key that decoding can step on."""
    index = signals.index
    first = max(0, key - 2 * _FLASH_SAMPLES)
    usable = ~index.is_key[first:key] & signals.is_reference[first:key] & index.is_readable[first:key]
    return Look(first + int(np.flatnonzero(usable)[-1]), _LONG_LOOK_BYTES) if usable.any() else None


def is_violent(evidence: Evidence, look: Look) -> bool:
    """Whether so much was new in the sample before a key that the key need not begin a scene."""
    seen = evidence.glances.get(look.sample)
    return seen is not None and seen.intra > _VIOLENT


def is_weak_key(signals: Signals, key: int) -> bool:
    """Whether an irregular key is so small among large samples that motion may have put it there."""
    return bool(signals.is_irregular[key] and signals.size_ratio[key] < _STRONG_KEY_RATIO)


def is_flash(signals: Signals, key: int) -> bool:
    """Whether a sample of a key's size follows a key so closely as the end of a flash does."""
    sizes = signals.index.size_bytes
    after = sizes[key + 1 : key + 1 + 2 * _FLASH_SAMPLES]
    return bool(len(after) and after.max() > _FLASH_SHARE * sizes[key])
