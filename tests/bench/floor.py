"""What keyframes cost without any analysis: index, signals and keys as JPEGs (`python -m tests.bench.floor CLIP`).

No choice of frames can be cheaper than that; what ours takes beyond it is for finding out which frames to take.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import cv2
import numpy as np

from pipeline.jpeg import encode_jpeg
from pipeline.media import KeyframeSettings
from pipeline.video.decode import SampleDecoder, upright_image
from pipeline.video.keyframes import wanted_keyframes
from pipeline.video.limits import Limits
from pipeline.video.opening import read_index
from pipeline.video.samples import SampleReader
from pipeline.video.signals import signals
from pipeline.video.source import LocalSource

_RUNS = 5


def floor_s(clip: Path) -> float:
    """Processor seconds, the least of five runs."""
    return min(_once(clip) for _ in range(_RUNS))


def _once(clip: Path) -> float:
    start_s, limits = time.process_time(), Limits()
    with LocalSource(clip) as source:
        index = read_index(source, limits)
        anchors = signals(index).anchors
        count = min(len(anchors), wanted_keyframes(index.duration_s, KeyframeSettings()))
        keys = [int(anchors[at]) for at in np.linspace(0, len(anchors) - 1, count).astype(int)]
        decoder = SampleDecoder(index.facts, max_pixels=limits.max_pixels, loop_filter=True)
        for coded in SampleReader(source, index).read(keys).values():
            for frame in decoder.decode([coded], frozenset([coded.pts])).values():
                encode_jpeg(upright_image(frame, index.facts, limits.max_image_pixels))
    return time.process_time() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, nargs="+")
    cv2.setNumThreads(1)
    for clip in parser.parse_args().clips:
        print(f"{clip.name}: {1e3 * floor_s(clip):.0f} ms")  # noqa: T201 - the output


if __name__ == "__main__":
    main()
