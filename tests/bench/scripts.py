"""What happens in a generated clip, and the truth about it. Pure: a kind and a seed decide everything.

*edit*: shots of 2 to 5 s under every kind of camera, joined by hard cuts, dissolves and fades through black, with
camera flashes and exposure changes within shots. *static*: a camera that stands still, sensor noise, small and large
things that pass, flashes and exposure changes, one hard cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from pipeline.media import BgrImage
from tests.bench.pictures import Camera, Mover, SensorNoise, draw_all, muted, place, thing

FPS = 30
_KINDS = ("cut", "dissolve", "fade")


@dataclass(frozen=True, slots=True)
class Shot:
    """[start_s, end_s) without its transitions; `joins` says how it follows the one before."""

    start_s: float
    end_s: float
    seed: int
    camera: Camera
    movers: tuple[Mover, ...]
    noise: float
    joins: str = "cut"
    joins_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Script:
    """Times are seconds from the first frame; the lists are as in the truth files."""

    duration_s: float
    size_px: tuple[int, int]
    shots: tuple[Shot, ...]
    flashes: tuple[tuple[float, float], ...] = ()
    exposures: tuple[tuple[float, float, float], ...] = ()
    motion: tuple[tuple[float, float, str], ...] = ()
    motion_scored: tuple[tuple[float, float], ...] = ()
    noise_seed: int = 0

    def truth(self, name: str, group: str) -> dict[str, object]:
        """The truth file's content. A gradual transition is given as the range in which both scenes are seen."""
        hard = [shot.start_s for shot in self.shots[1:] if shot.joins == "cut"]
        gradual = [
            [shot.joins, round(shot.start_s - shot.joins_s / 2, 3), round(shot.start_s + shot.joins_s / 2, 3)]
            for shot in self.shots[1:]
            if shot.joins != "cut"
        ]
        return {
            "name": name,
            "group": group,
            "fps": FPS,
            "duration": self.duration_s,
            "cuts": hard,
            "gradual": gradual,
            "motion": [list(moving) for moving in self.motion],
            "motion_scored": [list(scored) for scored in self.motion_scored],
            "flashes": [list(flash) for flash in self.flashes],
            "exposure": [list(change[:2]) for change in self.exposures],
        }


def script(kind: str, seed: int, duration_s: float, size_px: tuple[int, int]) -> Script:
    generator = np.random.default_rng([seed, kind == "edit"])
    return (_edit if kind == "edit" else _static)(generator, duration_s, size_px)


def _edit(generator: np.random.Generator, duration_s: float, size_px: tuple[int, int]) -> Script:
    count = max(3, round(duration_s / 3.3))
    lengths = generator.uniform(2.0, 4.6, count)
    edges = np.concatenate([[0.0], np.cumsum(lengths * duration_s / lengths.sum())])
    edges = np.round(edges * FPS) / FPS
    kinds = np.array(_KINDS * (count // 3 + 1))[: count - 1]
    generator.shuffle(kinds)
    shots = []
    for number, (start_s, end_s) in enumerate(itertools.pairwise(edges.tolist())):
        joins = str(kinds[number - 1]) if number else "cut"
        joins_s = 0.0 if joins == "cut" else round(float(generator.uniform(0.5, 1.4)) * FPS) / FPS
        camera = _camera(generator)
        movers = tuple(_wanderer(generator, size_px) for _ in range(int(generator.integers(0, 4))))
        noise = float(generator.choice([0.0, 2.0, 4.0]))
        seed = int(generator.integers(1 << 30))
        shots.append(Shot(float(start_s), float(end_s), seed, camera, movers, noise, joins, joins_s))
    flashes, exposures = _lights(generator, shots, 4)
    return Script(duration_s, size_px, tuple(shots), flashes, exposures, noise_seed=int(generator.integers(1 << 30)))


def _camera(generator: np.random.Generator) -> Camera:
    kind = int(generator.integers(0, 5))
    phase = float(generator.uniform(0, 100))
    if kind == 0:
        angle, speed = float(generator.uniform(0, 6.28)), float(generator.uniform(40, 240))
        return Camera(pan_px_s=(speed * np.cos(angle), 0.3 * speed * np.sin(angle)))
    if kind == 1:
        return Camera(zoom_s=float(generator.uniform(0.01, 0.05)))
    if kind == 2:
        return Camera(shake_px=float(generator.uniform(10, 45)), phase=phase)
    if kind == 3:
        return Camera(pan_px_s=(float(generator.uniform(-60, 60)), 0.0), shake_px=float(generator.uniform(5, 15)))
    return Camera()


def _wanderer(generator: np.random.Generator, size_px: tuple[int, int]) -> Mover:
    side = int(generator.integers(80, 340) * size_px[1] / 720)
    colour = muted(generator)
    shown = thing(int(generator.integers(1 << 30)), side, colour, is_round=bool(generator.integers(0, 2)))
    ways = [(float(generator.uniform(-side, size_px[0])), float(generator.uniform(0, size_px[1]))) for _ in range(2)]
    return Mover(shown, -2.0, float(generator.uniform(5, 9)), ways[0], ways[1])


def _lights(
    generator: np.random.Generator, shots: list[Shot], each: int, avoid: tuple[tuple[float, float], ...] = ()
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float, float], ...]]:
    """Flashes as (start, length) and exposure changes as (start, end, gain), away from transitions and `avoid`."""
    free: list[tuple[float, float]] = []
    for shot in shots:
        cursor = shot.start_s + shot.joins_s / 2 + 0.7
        while cursor + 0.8 < shot.end_s - 0.9:
            slot = (cursor, cursor + 0.8)
            if all(slot[1] + 1.0 < start_s or end_s + 1.0 < slot[0] for start_s, end_s in avoid):
                free.append(slot)
                cursor += 1.4
            else:
                cursor += 0.3
    generator.shuffle(free)
    flashes = [(round(slot[0] * FPS) / FPS, float(generator.integers(1, 4)) / FPS) for slot in free[:each]]
    exposures = []
    for slot in free[each : 2 * each]:
        start_s, length_s = round(slot[0] * FPS) / FPS, float(generator.choice([0.0, 0.3, 0.7]))
        exposures.append((start_s, start_s + length_s, float(generator.choice([0.62, 0.75, 1.3, 1.5]))))
    return tuple(sorted(flashes)), tuple(sorted(exposures))


def _static(generator: np.random.Generator, duration_s: float, size_px: tuple[int, int]) -> Script:
    middle_s = round(duration_s * float(generator.uniform(0.4, 0.6)))
    noise = float(generator.choice([0.0, 1.5, 3.0]))
    motion: list[tuple[float, float, str]] = []
    at_s = 2.5
    while at_s < duration_s - 3.5:
        length_s = float(generator.uniform(1.5, 3.5))
        if not (at_s - 1.5 < middle_s < at_s + length_s + 1.5):
            side = int(generator.choice([45, 70, 110, 160, 240]))
            motion.append((round(at_s, 2), round(at_s + length_s, 2), f"obj-{side}"))
            at_s += length_s + float(generator.uniform(2.8, 4.8))
        else:
            at_s = middle_s + 2.0
    shots = []
    for start_s, end_s in ((0.0, float(middle_s)), (float(middle_s), duration_s)):
        movers = tuple(
            _passer(generator, moving, start_s, size_px) for moving in motion if start_s <= moving[0] < end_s
        )
        shots.append(Shot(start_s, end_s, int(generator.integers(1 << 30)), Camera(), movers, noise))
    avoid = tuple((start_s, end_s) for start_s, end_s, _ in motion)
    flashes, exposures = _lights(generator, shots, 3, avoid)
    scored = ((0.0, duration_s),)
    noise_seed = int(generator.integers(1 << 30))
    return Script(duration_s, size_px, tuple(shots), flashes, exposures, tuple(motion), scored, noise_seed)


def _passer(
    generator: np.random.Generator, moving: tuple[float, float, str], shot_s: float, size_px: tuple[int, int]
) -> Mover:
    """Comes into sight within the picture and is gone at its end, as things do behind doors and corners."""
    side = max(12, int(moving[2].split("-")[1]) * size_px[1] // 720)
    colour = muted(generator)
    shown = thing(int(generator.integers(1 << 30)), side, colour, is_round=bool(generator.integers(0, 2)))
    speed = float(generator.uniform(80, 320)) * size_px[1] / 720 * (1 if generator.integers(0, 2) else -1)
    way = speed * (moving[1] - moving[0])
    low, high = max(0.0, -way), min(size_px[0] - side, size_px[0] - side - way)
    left = float(generator.uniform(low, high)) if low < high else (0.0 if way > 0 else float(size_px[0] - side))
    top = float(generator.uniform(0.1, 0.8)) * (size_px[1] - side)
    return Mover(shown, moving[0] - shot_s, moving[1] - shot_s, (left, top), (left + way, top))


def frames(written: Script) -> Iterator[BgrImage]:
    """Every frame of a script, in order."""
    noise = SensorNoise(written.noise_seed, written.size_px)
    places: dict[int, BgrImage] = {}
    for number in range(round(written.duration_s * FPS)):
        t_s = number / FPS
        position = max(i for i, shot in enumerate(written.shots) if shot.start_s <= t_s + 1e-6)
        image = _joined(written, position, t_s, places)
        for start_s, length_s in written.flashes:
            if start_s - 1e-6 <= t_s < start_s + length_s - 1e-6:
                image = np.asarray(cv2.addWeighted(image, 0.75, image, 0.0, 120.0), np.uint8)
        gain = _gain(written, written.shots[position], t_s)
        if gain != 1.0:
            image = np.asarray(cv2.convertScaleAbs(image, alpha=gain), np.uint8)
        yield noise.add(image, written.shots[position].noise)
        for old in [seed for seed in places if seed not in {s.seed for s in written.shots[max(0, position - 1) :]}]:
            del places[old]


def _joined(written: Script, position: int, t_s: float, places: dict[int, BgrImage]) -> BgrImage:
    """The picture of a shot, mixed with its neighbour's within a gradual transition."""
    shots = written.shots
    for after in (position, position + 1):
        if not 0 < after < len(shots) or shots[after].joins == "cut":
            continue
        done = (t_s - (shots[after].start_s - shots[after].joins_s / 2)) / shots[after].joins_s
        if not 0 < done < 1:
            continue
        old = _shown(written, shots[after - 1], t_s, places)
        new = _shown(written, shots[after], t_s, places)
        if shots[after].joins == "dissolve":
            return np.asarray(cv2.addWeighted(old, 1 - done, new, done, 0.0), np.uint8)
        return np.asarray(cv2.convertScaleAbs(old if done < 0.5 else new, alpha=abs(2 * done - 1)), np.uint8)
    return _shown(written, shots[position], t_s, places)


def _shown(written: Script, shot: Shot, t_s: float, places: dict[int, BgrImage]) -> BgrImage:
    if shot.seed not in places:
        places[shot.seed] = place(shot.seed, written.size_px)
    image = shot.camera.view(places[shot.seed], t_s - shot.start_s, written.size_px)
    draw_all(image, shot.movers, t_s - shot.start_s)
    return image


def _gain(written: Script, shot: Shot, t_s: float) -> float:
    """The exposure at an instant: each change lasts to the end of its shot."""
    gain = 1.0
    for start_s, end_s, factor in written.exposures:
        if shot.start_s <= start_s < shot.end_s and t_s >= start_s - 1e-6:
            done = 1.0 if end_s <= start_s else min(1.0, (t_s - start_s) / (end_s - start_s))
            gain *= 1 + (factor - 1) * done
    return float(np.clip(gain, 0.45, 2.0))
