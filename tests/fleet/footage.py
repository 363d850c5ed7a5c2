"""What is uploaded: one-minute clips as the web and phones have them, two-second clips of one colour, poison."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from pipeline.errors import Reason, VideosieveError
from pipeline.media import BgrImage
from pipeline.models.registry import Registry
from pipeline.video.synthesis import write_clip
from tests.bench.corpus import FULL, QUICK, SEEDS, Target, encode, folder_of
from tests.bench.scripts import script
from tests.clips import moving_frames, truncated, write_audio_only, write_numbered
from tests.models import tiny
from tests.road.conftest import BLUE, POLICY, PURPLE, RED

GROUPS = ("web", "phone")
SHORT_PX = (320, 180)
SHORT_FPS = 10
_ANSWERS = {
    RED: ("blue=negative", "red=positive"),
    BLUE: ("blue=positive", "red=negative"),
    PURPLE: ("blue=review", "red=review"),
}


@dataclass(frozen=True, slots=True)
class Clip:
    """A file's bytes and what must become of it: answers of the colour policy, or the reason of its rejection.

    Neither is given where the answers do not matter.
    """

    name: str
    data: bytes
    answers: tuple[str, ...] | None = None
    rejected: Reason | None = None


def long_clips(corpus: Path | None, *, quick: bool = False) -> dict[str, list[Path]]:
    """One-minute 720p clips by group: two edited and two static ones each. Those missing in the cache are made.

    `corpus` is any folder of NAME_web.mp4 and NAME_phone.mp4 to be taken instead.
    """
    if corpus is not None:
        found = {group: sorted(corpus.glob(f"*_{group}.mp4")) for group in GROUPS}
        if not all(found.values()):
            raise SystemExit(f"{corpus} lacks files called *_web.mp4 or *_phone.mp4")
        return found
    scale = QUICK if quick else FULL
    folder = folder_of(scale, "development")
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(folder, kind, number, quick) for number in range(1 if quick else 2) for kind in ("edit", "static")]
    with ProcessPoolExecutor(2) as pool:
        names = list(pool.map(_make, tasks))
    return {group: [folder / f"{name}_{group}.mp4" for name in names] for group in GROUPS}


def _make(task: tuple[Path, str, int, bool]) -> str:
    folder, kind, number, quick = task
    cv2.setNumThreads(1)
    scale, name = QUICK if quick else FULL, f"{kind}{number}"
    missing = [
        Target(group, group, group, scale.size_px) for group in GROUPS if not (folder / f"{name}_{group}.json").exists()
    ]
    if missing:
        seed = SEEDS["development"] * 1000 + number
        encode(folder, name, script(kind, seed, scale.duration_s, scale.size_px), missing)
    return name


def short_clips(folder: Path, seconds: float = 2.0) -> list[Clip]:
    """Clips of one colour each with a square that moves: the colour policy's answers are known."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_short(folder / f"{seconds:g}s-{number}.mp4", bgr, seconds) for number, bgr in enumerate(_ANSWERS)]


def _short(path: Path, bgr: tuple[int, int, int], seconds: float) -> Clip:
    write_clip(path, _colour_frames(bgr, round(seconds * SHORT_FPS)), SHORT_FPS)
    return Clip(path.stem, path.read_bytes(), answers=_ANSWERS[bgr])


def _colour_frames(bgr: tuple[int, int, int], count: int) -> Iterator[BgrImage]:
    width_px, height_px = SHORT_PX
    for number in range(count):
        image = np.full((height_px, width_px, 3), bgr, np.uint8)
        image[8:16, 8 + 2 * number : 16 + 2 * number] = 255
        yield image


def slow_clip(folder: Path) -> Clip:
    """Takes some tenths of a second: many keyframes at the colour policy's sixty a minute."""
    path = folder / "slow.mp4"
    write_clip(path, moving_frames(20.0, ((2.0, 18.0),), noise=12.0), 30, options={"preset": "ultrafast", "g": "15"})
    return Clip("slow", path.read_bytes())


def poison(folder: Path) -> list[Clip]:
    """Files that are no videos, each with the reason that its uploader must be told."""
    whole = write_numbered(folder / "whole.mp4", 60)
    cut = truncated(whole, folder / "cut.mp4", 0.05)  # the index was at its end
    sound = write_audio_only(folder / "sound.mp4")
    return [
        Clip("empty", b"", rejected=Reason.EMPTY_FILE),
        Clip("text", b"this is not a video\n" * 50, rejected=Reason.NOT_A_VIDEO),
        Clip("sound", sound.read_bytes(), rejected=Reason.NO_VIDEO_STREAM),
        Clip("cut", cut.read_bytes(), rejected=Reason.TRUNCATED),
    ]


def colour_policy(folder: Path) -> dict[str, str]:
    """Writes the colour policy with its tiny model; the settings by which a worker finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny.channel_means()
    (folder / "tiny.onnx").write_bytes(model)
    fields = tiny.fields(
        model, head="classifier", labels=["blue", "green", "red"], preprocess={"layout": "NHWC", "scale": [1 / 255] * 3}
    )
    tiny.catalogue(folder, {"means": fields})
    (folder / "colours.yaml").write_text(POLICY.replace("SHA", hashlib.sha256(model).hexdigest()))
    return {
        "VIDEOSIEVE_POLICY": str(folder / "colours.yaml"),
        "VIDEOSIEVE_MODELS__DIR": str(folder),
        "VIDEOSIEVE_MODELS__EXTRA_CATALOG": str(folder / "extra.yaml"),
    }


def shipped_policy(models_dir: Path) -> dict[str, str]:
    """The moderation policy on real weights; SystemExit that says how to get them where they are missing."""
    registry = Registry(models_dir)
    for name in ("nudenet-320n", "open-nsfw"):
        try:
            registry.weights(name)
        except VideosieveError as error:
            raise SystemExit(f"{error.detail}: `make models` fetches the weights") from None
    return {"VIDEOSIEVE_POLICY": "moderation", "VIDEOSIEVE_MODELS__DIR": str(models_dir)}
