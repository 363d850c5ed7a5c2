"""One tenant with thousands of videos, then ten with one each, through S3's own events.

    python -m tests.fleet.fairness [--videos 2000] [--workers 2]

First ten tenants upload one video each to an idle fleet, one after the other and then at once. Then one tenant fills
the lane, and ten others upload one video each: they must be decided within three times what the ten took on the idle
fleet. A stage that sleeps makes a video as slow as a real one, about, and takes one of the places for inference.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.fleet import footage, slow_worker
from tests.fleet.footage import Clip
from tests.fleet.load import put
from tests.fleet.reports import FOLDER, say, table, write_json
from tests.fleet.stand import Stand, temporary_folder
from tests.fleet.verdicts import account

MOST = 3.0
SMALL = 10
VIDEO_S = 0.5


def _key(tenant: int, number: int) -> str:
    """As the API names uploads: `uploads/TENANT/UPLOAD/FILE`."""
    return f"uploads/{UUID(int=tenant)}/{UUID(int=number)}/clip.mp4"


def run(videos: int, workers: int, folder: Path, *, small: int = SMALL) -> dict[str, Any]:
    settings = footage.colour_policy(folder / "weights") | {slow_worker.SLEEP_S: str(VIDEO_S)}
    clips = itertools.cycle(footage.short_clips(folder / "clips"))
    expected: dict[str, Clip] = {}
    with Stand(folder / "stand", settings) as stand:
        for _ in range(workers):
            stand.worker(slow_worker.COMMAND)
        warm = {_key(99, number): next(clips) for number in range(2 * workers)}
        expected |= warm
        _upload(stand, warm)
        stand.wait_until_settled(len(expected), timeout_s=60, every_s=0.05)
        idle = {_key(100 + number, number): next(clips) for number in range(small)}
        idle_s = _one_by_one(stand, idle)
        at_once = {_key(150 + number, number): next(clips) for number in range(small)}
        idle_at_once_s = _together(stand, at_once)
        expected |= idle | at_once
        flood = {_key(1, number): next(clips) for number in range(videos)}
        expected |= flood
        flood_s = _upload(stand, flood)
        others = {_key(200 + number, number): next(clips) for number in range(small)}
        expected |= others
        waits_s = _together(stand, others)
        left = len(expected) - stand.books.settled()
        everything = stand.wait_until_settled(len(expected), timeout_s=120 + left * VIDEO_S)
        stand.wait_until_empty(30)
        for worker in stand.living():
            worker.terminate()
            worker.wait(60)
        found = account(stand, expected)
    ratio = max(waits_s) / max(idle_at_once_s)
    return {
        "kind": "fairness",
        "flood": videos,
        "workers": workers,
        "idle_s": idle_s,
        "idle_at_once_s": idle_at_once_s,
        "flood_upload_s": flood_s,
        "left_of_the_flood_then": left,
        "waits_s": waits_s,
        "worst_ratio": ratio,
        "worst_ratio_to_one_alone": max(waits_s) / statistics.median(idle_s),
        "settled": everything,
        "account": found.as_json(),
        "ok": ratio <= MOST and left > 0 and not found.faults(),
    }


def _upload(stand: Stand, videos: dict[str, Clip]) -> float:
    start_s = time.monotonic()
    put(stand, ((key, partial(getattr, clip, "data")) for key, clip in videos.items()))
    return round(time.monotonic() - start_s, 1)


def _one_by_one(stand: Stand, videos: dict[str, Clip]) -> list[float]:
    """From accepted to committed, each on an idle fleet."""
    return [wait for key, clip in videos.items() for wait in _together(stand, {key: clip})]


def _together(stand: Stand, videos: dict[str, Clip]) -> list[float]:
    """Seconds from the acceptance of each upload to its committed outcome, seen by looking 20 times a second."""
    accepted = put(stand, ((key, partial(getattr, clip, "data")) for key, clip in videos.items()), threads=2).at_s
    waits: dict[str, float] = {}
    deadline_s = time.monotonic() + 600
    while len(waits) < len(videos) and time.monotonic() < deadline_s:
        rows = stand.books.rows(
            "SELECT v.key FROM runs r JOIN videos v ON v.id = r.video_id "
            "WHERE r.state IN ('decided', 'in_review') AND v.key = ANY(%s)",
            [key for key in videos if key not in waits],
        )
        waits |= {row.key: round(time.time() - accepted[row.key], 3) for row in rows}
        time.sleep(0.05)
    return list(waits.values()) + [600.0] * (len(videos) - len(waits))


def page(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        ["videos of the large tenant", result["flood"]],
        ["workers", result["workers"]],
        ["idle fleet, one video alone: median s", statistics.median(result["idle_s"])],
        ["idle fleet, ten at once: slowest s", max(result["idle_at_once_s"])],
        ["left of the flood when the ten were decided", result["left_of_the_flood_then"]],
        ["the ten: median s", statistics.median(result["waits_s"])],
        ["the ten: slowest s", max(result["waits_s"])],
        ["slowest against the slowest of ten on the idle fleet (at most 3)", result["worst_ratio"]],
        ["slowest against one video alone", result["worst_ratio_to_one_alone"]],
        ["holds", "yes" if result["ok"] else f"no: {result['account']['faults']}"],
    ]
    return (
        "# Fairness\n\nWritten by `python -m tests.fleet.fairness`; what it means stands in [fleet](fleet.md).\n\n"
        + table(["what", "how much"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    with temporary_folder() as folder:
        result = run(options.videos, options.workers, folder)
    write_json("fleet-fairness", result, options.out)
    (options.out / "fleet-fairness.md").write_text(page(result))
    say(page(result))
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
