"""Extractions and analyses built by hand, for tests that look at no video."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.media import Extraction, ExtractionCost, Keyframe, KeyframeReason, VideoInfo


def extraction(*, keyframes: int = 2, frames: int = 300, cpu_s: float = 0.3, **fields: Any) -> Extraction:
    values: dict[str, Any] = {
        "video": VideoInfo(10.00049, 32, 16, 90, "h264", "mp4", frames, Fraction(1, 12800)),
        "cuts_s": (1.23456,),
        "motion_s": ((0.5, 2.00049),),
        "keyframes": tuple(Keyframe(n + 0.00049, n * 512, KeyframeReason.MOTION, 0.123456) for n in range(keyframes)),
        "images": tuple(np.full((16, 32, 3), n, dtype=np.uint8) for n in range(keyframes)),
        "warnings": ("truncated",),
        "coverage": 0.98765432,
        "cost": ExtractionCost(cpu_s, 1000, 5000, 3, 42),
    }
    return Extraction(**(values | fields))
