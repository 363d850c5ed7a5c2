"""Whether workers add up: 1, 2 and 4 processes over an artificially slow stage.

    python -m tests.fleet.scaling [--sleep 2] [--videos 16]

Each worker has the same settings; the stage sleeps, so that the machine's cores do not bound it. What each worker
holds open and in flight is counted at half time.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.fleet import footage, slow_worker
from tests.fleet.load import put
from tests.fleet.reports import FOLDER, plots, save, say, table, write_json
from tests.fleet.stand import Stand, temporary_folder
from tests.fleet.verdicts import account
from tests.fleet.worker import WorkerProcess

CONCURRENCY = 2
LEAST_EFFICIENCY = 0.85


def run(workers: int, videos: int, sleep_s: float, folder: Path) -> dict[str, Any]:
    """Drain `videos` a worker with `workers`; the rate between the first and the last few."""
    settings = footage.colour_policy(folder / "weights") | {
        slow_worker.SLEEP_S: str(sleep_s),
        "VIDEOSIEVE_WORKER__CONCURRENCY": str(CONCURRENCY),
        "VIDEOSIEVE_WORKER__POLL_WAIT_S": "1",
    }
    clips = footage.short_clips(folder / "clips")
    count = videos * workers
    expected = {f"scale/{n:04d}.mp4": clip for n, clip in zip(range(count), itertools.cycle(clips), strict=False)}
    with Stand(folder / f"stand-{workers}", settings) as stand:
        processes = [stand.worker(slow_worker.COMMAND) for _ in range(workers)]
        for process in processes:
            process.wait_until_started(120)
        put(stand, ((key, partial(getattr, clip, "data")) for key, clip in expected.items()))
        edge = CONCURRENCY * workers
        first = stand.wait_until_settled(edge, timeout_s=120, every_s=0.05)
        first_s = time.monotonic()
        stand.wait_until_settled(count // 2, timeout_s=600, every_s=0.05)
        held = [_held(process) for process in processes]
        last = stand.wait_until_settled(count - edge, timeout_s=600, every_s=0.05)
        last_s = time.monotonic()
        stand.wait_until_settled(count, timeout_s=600)
        for process in processes:
            process.terminate()
        codes = [process.wait(60) for process in processes]
        found = account(stand, expected)
    return {
        "workers": workers,
        "videos_per_s": (last - first) / (last_s - first_s),
        "ideal_per_s": workers * CONCURRENCY / sleep_s,
        "held": held,
        "faults": found.faults(),
        "exit_codes": codes,
    }


def _held(worker: WorkerProcess) -> dict[str, int]:
    """Connections and messages of one worker now."""
    process = psutil.Process(worker.pid)
    connections = [c for c in process.net_connections("inet") if c.status == psutil.CONN_ESTABLISHED]
    stores = {c.raddr.port for c in connections}
    to_database = [c for c in process.net_connections("unix") if c.raddr and "PGSQL" in str(c.raddr)]
    metrics = worker.scrape()
    return {
        "in_flight": round(metrics.total("videosieve_in_flight_videos")),
        "connections_to_s3_and_sqs": len(connections),
        "endpoints": len(stores),
        "connections_to_postgres": len(to_database) or _sockets(process),
    }


def _sockets(process: Any) -> int:
    """Unix sockets without a name at this end: PostgreSQL's, the nursery's and the children's."""
    return len(process.net_connections("unix"))


def judge(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Efficiency of each against the first, a worker."""
    alone = results[0]["videos_per_s"] / results[0]["workers"]
    for result in results:
        result["efficiency"] = result["videos_per_s"] / result["workers"] / alone
    is_well = all(r["efficiency"] >= LEAST_EFFICIENCY and not r["faults"] and not any(r["exit_codes"]) for r in results)
    return {"kind": "scaling", "concurrency": CONCURRENCY, "results": results, "ok": is_well}


def page(result: dict[str, Any]) -> str:
    rows = [
        [r["workers"], r["videos_per_s"], r["ideal_per_s"], r["efficiency"], r["held"][0]["in_flight"]]
        + [r["held"][0][name] for name in ("connections_to_s3_and_sqs", "connections_to_postgres")]
        for r in result["results"]
    ]
    header = ["workers", "videos/s", "ideal", "against one worker", "in flight", "to S3 and SQS", "Unix sockets"]
    return (
        "# Scaling\n\nWritten by `python -m tests.fleet.scaling`; what it means stands in [fleet](fleet.md).\n\n"
        + table(header, rows)
        + f"\nWhat the first worker holds, at half time; concurrency {result['concurrency']}.\n"
        + "\n![scaling](fleet-scaling.svg)\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleep", type=float, default=2.0)
    parser.add_argument("--videos", type=int, default=16, help="a worker")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    with temporary_folder() as folder:
        result = judge([run(workers, options.videos, options.sleep, folder) for workers in (1, 2, 4)])
    write_json("fleet-scaling", result, options.out)
    figure, axes = plots().subplots(figsize=(4.5, 3.4))
    counts = [r["workers"] for r in result["results"]]
    axes.plot(counts, [r["videos_per_s"] for r in result["results"]], marker="o", label="measured")
    axes.plot(counts, [r["ideal_per_s"] for r in result["results"]], linestyle="--", label="ideal")
    axes.set(xlabel="workers", ylabel="videos a second", ylim=(0, None))
    axes.legend()
    save(figure, options.out / "fleet-scaling.svg")
    (options.out / "fleet-scaling.md").write_text(page(result))
    say(page(result))
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
