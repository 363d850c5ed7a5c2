"""What detectors that see every frame found in a clip, kept by the clip's content: it is the same every time.

Only quality is taken from here. What a detector costs depends on the machine and the hour, so ratios come from clips on
which both sides were measured in the same run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

from tests.bench.baselines import TRANSNET, TRANSNET_VERSION, Detector
from tests.bench.corpus import CACHE
from tests.bench.measuring import Measured, measure_baseline

KEPT = CACHE / "kept"
_PACKAGES = {"FFmpeg scene": ("av",)}
_SCENEDETECT = ("scenedetect-headless", "opencv-python-headless")


@cache
def fingerprint(clip: Path) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of a file."""
    with clip.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@cache
def _version(name: str) -> str:
    if name == TRANSNET:
        return TRANSNET_VERSION
    return "-".join(metadata.version(package) for package in _PACKAGES.get(name, _SCENEDETECT))


def _place(name: str, clip: Path) -> Path:
    return KEPT / f"{fingerprint(clip)}-{name.replace(' ', '')}-{_version(name)}.json"


def kept(name: str, clip: Path) -> Measured | None:
    """What a detector found in an earlier run; None where it has not been run on these bytes."""
    try:
        found = json.loads(_place(name, clip).read_text())
    except FileNotFoundError:
        return None
    cuts_s = tuple(found["cuts_s"])
    return Measured(found["cpu_s"], found["wall_s"], cuts_s, bytes_read=clip.stat().st_size, is_same_run=False)


def keep(name: str, clip: Path, measured: Measured) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = {"clip": clip.name, "cpu_s": measured.cpu_s, "wall_s": measured.wall_s, "cuts_s": measured.cuts_s}
    partial = _place(name, clip).with_suffix(".part")
    partial.write_text(json.dumps(facts))
    partial.rename(_place(name, clip))


def kept_or_found(name: str, detector: Detector, clip: Path) -> Measured:
    """The kept result, or a run whose result is kept."""
    if known := kept(name, clip):
        return known
    measured = replace(measure_baseline(detector, clip), is_same_run=False)
    keep(name, clip, measured)
    return measured
