"""SIGTERM at random moments: the worker exits in time, and nothing waits for a visibility timeout.

    python -m tests.fleet.stops [--stops 12] [--grace 3] [--seed 8] [--backlog 1500]

The lane is kept filled, with far more than is worked on: a worker that stops holds hundreds of messages. Each worker in
turn is stopped at a seeded moment in its start or in the seconds after it, and another one takes over. Leases are long,
so that a message that was not given back would be missed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from tests.fleet import footage, slow_worker
from tests.fleet.load import put
from tests.fleet.processes import tree, wait_until_gone
from tests.fleet.reports import FOLDER, say, table, write_json
from tests.fleet.stand import Stand, temporary_folder
from tests.fleet.verdicts import account

LEASE_S = 600
EXIT_SLACK_S = 2.0
"""Beyond the grace period, for a process to end; the machine may be busy."""
VIDEO_S = 1.0
LONGEST_LIFE_S = 6.0
STARTING_EVERY = 4
"""One stop in so many may come while the worker is still starting; the others come when it works."""


def run(stops: int, grace_s: float, seed: int, folder: Path, *, backlog: int = 0) -> dict[str, Any]:
    dice = random.Random(seed)  # noqa: S311 - a seeded experiment
    settings = footage.colour_policy(folder / "weights") | {
        slow_worker.SLEEP_S: str(VIDEO_S),
        "VIDEOSIEVE_WORKER__LEASE_S": str(LEASE_S),
        "VIDEOSIEVE_WORKER__GRACE_S": str(grace_s),
    }
    clips = footage.short_clips(folder / "clips")
    videos = 6 * stops + backlog
    expected = {f"stops/{n:04d}.mp4": clip for n, clip in zip(range(videos), itertools.cycle(clips), strict=False)}
    exits, left_behind = [], list[int]()
    with Stand(folder / "stand", settings) as stand:
        put(stand, ((key, partial(getattr, clip, "data")) for key, clip in expected.items()))
        for number in range(stops):
            worker = stand.worker(slow_worker.COMMAND)
            if number % STARTING_EVERY:
                worker.wait_until_started(60)
            life_s = dice.uniform(0.2, LONGEST_LIFE_S)
            time.sleep(life_s)
            pids = tree(worker.pid)[1:]
            start_s = time.monotonic()
            worker.terminate()
            code = worker.wait(120)
            exits.append({"after_s": round(life_s, 2), "took_s": round(time.monotonic() - start_s, 2), "code": code})
            left_behind += pids
        start_s = time.monotonic()
        stand.worker()
        left = videos - stand.books.settled()
        settled = stand.wait_until_settled(videos, timeout_s=60 + left * VIDEO_S)
        emptied = stand.wait_until_empty(30)
        rest_s = time.monotonic() - start_s
        for worker in stand.living():
            worker.terminate()
            worker.wait(60)
        left_behind = wait_until_gone(left_behind, 10)
        stand.command("reconcile", "--older-than", "1")  # artifacts of attempts that were given back
        found = account(stand, expected)
        events = Counter(str(event.get("event")) for worker in stand.workers for event in worker.events())
    slowest_s = max(stop["took_s"] for stop in exits)
    # a SIGTERM before the worker has set its handlers up ends it by that signal: nothing was taken yet
    codes_are_well = all(stop["code"] in (0, -15) for stop in exits) and any(stop["code"] == 0 for stop in exits)
    return {
        "kind": "stops",
        "grace_s": grace_s,
        "videos": videos,
        "stops": exits,
        "slowest_exit_s": slowest_s,
        "left_for_the_last_worker": left,
        "last_worker_s": round(rest_s, 1),
        "settled": settled,
        "lane_emptied": emptied,
        "processes_left_behind": len(left_behind),
        "log_events": dict(events.most_common(20)),
        "account": found.as_json(),
        "ok": not found.faults()
        and emptied
        and codes_are_well
        and not left_behind
        and slowest_s <= grace_s + EXIT_SLACK_S,
    }


def page(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        ["SIGTERMs", len(result["stops"])],
        ["videos", result["videos"]],
        ["left for the last worker", result["left_for_the_last_worker"]],
        ["the last worker's time for them, s", result["last_worker_s"]],
        ["grace, s", result["grace_s"]],
        ["slowest exit, s", result["slowest_exit_s"]],
        ["exit codes", dict(Counter(stop["code"] for stop in result["stops"]))],
        ["claims beyond one a video (work begun again)", result["account"]["extra_claims"]],
        ["processes left behind", result["processes_left_behind"]],
        ["lane emptied without waiting for the visibility timeout", result["lane_emptied"]],
        ["holds", "yes" if result["ok"] else f"no: {result['account']['faults']}"],
    ]
    return (
        "# SIGTERM at random moments\n\nWritten by `python -m tests.fleet.stops`; what it means stands in "
        "[fleet](fleet.md).\n\n" + table(["what", "how much"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=12)
    parser.add_argument("--grace", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--backlog", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    with temporary_folder() as folder:
        result = run(options.stops, options.grace, options.seed, folder, backlog=options.backlog)
    write_json("fleet-stops", result, options.out)
    (options.out / "fleet-stops.md").write_text(page(result))
    say(page(result))
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
