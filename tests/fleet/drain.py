"""Many short videos: a burst, drained, and a soak through one worker.

    python -m tests.fleet.drain burst [--videos 10000] [--workers 2]
    python -m tests.fleet.drain soak [--videos 5000]

Two-second clips of 320x180, put straight into the bucket, so that S3's own events fill the lane; the colour policy with
its tiny model, so that the answers are known. Exits with 1 where something was lost or what must hold does not.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.fleet import footage
from tests.fleet.footage import Clip
from tests.fleet.load import Item, Uploaded, put
from tests.fleet.processes import own_cpu_s, tree_cpu_s, usage
from tests.fleet.reports import FOLDER, plots, save, say, table, write_json
from tests.fleet.sampling import Row, Sampler
from tests.fleet.stand import Stand, temporary_folder
from tests.fleet.verdicts import account

MOST_GROWTH = 0.05
SETTLED_FROM = 500
"""Memory after so many videos is compared with memory at the end; a tenth of all where there are fewer."""


@dataclass(slots=True)
class Ages:
    """How long the oldest upload has waited for its decision."""

    stand: Stand
    accepted: Mapping[str, float]
    settled: set[str] = field(default_factory=set)
    _since: object = None

    def look(self) -> float:
        """Seconds since the oldest upload without an outcome was accepted; 0 where there is none.

        Looks back a little each time: a row's time is when its transaction began, and others may commit before it.
        """
        rows = self.stand.books.rows(
            "SELECT v.key, r.updated_at FROM runs r JOIN videos v ON v.id = r.video_id "
            "WHERE r.state = ANY(%s) AND r.updated_at >= coalesce(%s, '-infinity'::timestamptz) - interval '30 s'",
            ["decided", "in_review", "rejected", "failed", "superseded"], self._since,
        )  # fmt: skip
        self.settled |= {row.key for row in rows}
        self._since = max((row.updated_at for row in rows), default=self._since)
        waiting = (at_s for key, at_s in list(self.accepted.items()) if key not in self.settled)
        return max(0.0, time.time() - min(waiting, default=time.time()))


def run(kind: str, videos: int, workers: int, folder: Path, ahead: int | None) -> dict[str, Any]:
    """Upload and drain; `ahead` holds the uploads back so that the lane stays short."""
    settings = footage.colour_policy(folder / "weights")
    clips = footage.short_clips(folder / "clips")
    expected = {f"{kind}/{number:06d}.mp4": clip for number, clip in zip(range(videos), itertools.cycle(clips))}
    with Stand(folder / "stand", settings) as stand:
        for _ in range(workers):
            stand.worker()
        done = Uploaded()
        ages = Ages(stand, done.at_s)

        def look() -> Row:
            pids = [worker.pid for worker in stand.living()]
            found = usage(*pids)
            backlog = stand.backlog()
            return {
                "settled": stand.books.settled(),
                "accepted": len(done.at_s),
                "backlog_per_worker": None if backlog is None else backlog / workers,
                "oldest_s": ages.look(),
                "parent_rss_bytes": sum(usage_of_parent(pid) for pid in pids),
                "pss_bytes": found.pss_bytes,
                "rss_bytes": found.rss_bytes,
                "processes": found.processes,
                "threads": found.threads,
                "descriptors": found.descriptors,
                "memfds": found.memfds,
            }

        start_s = time.monotonic()
        with Sampler(look, 2.0 if videos >= 1000 else 0.5) as sampler:
            uploading = threading.Thread(
                target=lambda: put(stand, _paced(expected, sampler, ahead), threads=4, into=done), daemon=True
            )
            uploading.start()
            stand.wait_until_settled(videos, timeout_s=max(120.0, videos * 1.0))
            drained_s = time.monotonic() - start_s
            uploading.join(60)
            stand.wait_until_empty(60)
            time.sleep(5 if videos >= 1000 else 1)  # what is still to be let go of is let go of
        parties = _parties(stand)
        codes = _stop(stand)
        found = account(stand, expected)
        return {
            "kind": kind,
            "workers": workers,
            "drained_s": round(drained_s, 1),
            "upload_s": round(max(done.at_s.values(), default=0) - min(done.at_s.values(), default=0), 1),
            "videos_per_s": round(videos / drained_s, 2),
            "cpu_s_a_video": {name: round(s / videos, 4) for name, s in parties.items()},
            "oldest_most_s": round(sampler.most("oldest_s"), 1),
            "backlog_per_worker_most": sampler.most("backlog_per_worker"),
            "growth": growth(sampler.rows, videos),
            "exit_codes": codes,
            "account": found.as_json(),
            "rows": sampler.thinned(),
            "ok": not found.faults() and not any(codes),
        }


def _paced(expected: Mapping[str, Clip], sampler: Sampler, ahead: int | None) -> Any:
    def items() -> Any:
        for number, (key, clip) in enumerate(expected.items()):
            while ahead is not None and number - (sampler.last("settled") or 0) > ahead:
                time.sleep(0.1)
            item: Item = (key, partial(getattr, clip, "data"))
            yield item

    return items()


def usage_of_parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


def _parties(stand: Stand) -> dict[str, float]:
    pids = [worker.pid for worker in stand.living()]
    parents_s = sum(map(own_cpu_s, pids))
    services = {name: tree_cpu_s(pid) for name, pid in stand.service_pids().items()}
    return {"worker parents": parents_s, "decoders": tree_cpu_s(*pids) - parents_s, **services}


def _stop(stand: Stand) -> list[int]:
    living = stand.living()
    for worker in living:
        worker.terminate()
    return [worker.wait(60) for worker in living]


def growth(rows: list[Row], videos: int) -> dict[str, dict[str, float]]:
    """What the workers held after the first videos and at the end: medians of up to ten looks, and the difference."""
    warm = min(SETTLED_FROM, videos // 10)
    begun = [row for row in rows if (row["settled"] or 0) >= warm]
    found = {}
    for name in ("parent_rss_bytes", "pss_bytes", "rss_bytes", "processes", "threads", "descriptors", "memfds"):
        values = [value for row in begun if (value := row[name]) is not None]
        if values:
            first, last = statistics.median(values[:10]), statistics.median(values[-10:])
            found[name] = {"first": first, "last": last, "grown": round(last / max(first, 1) - 1, 4)}
    return found


def page(result: Mapping[str, Any], name: str) -> str:
    facts = ("videos_per_s", "drained_s", "upload_s", "oldest_most_s", "backlog_per_worker_most")
    account_: dict[str, Any] = result["account"]
    rows: list[list[object]] = [["videos", account_["videos"]], ["workers", result["workers"]]]
    rows += [[fact, result[fact]] for fact in facts]
    rows += [[f"CPU s a video: {party}", s] for party, s in result["cpu_s_a_video"].items()]
    rows += [[name.replace("_", " "), len(v)] for name, v in account_.items() if isinstance(v, list)]
    rows += [["holds", "yes" if result["ok"] else f"no: {account_['faults']}"]]
    held = [[name, found["first"], found["last"], f"{found['grown']:+.1%}"] for name, found in result["growth"].items()]
    return (
        f"# {result['kind'].capitalize()}\n\nWritten by `python -m tests.fleet.drain {result['kind']}`; "
        "what it means stands in [fleet](fleet.md).\n\n"
        + table(["what", "how much"], rows)
        + "\n"
        + table(["held by the workers", f"after {SETTLED_FROM} videos", "at the end", "grown"], held)
        + f"\n![over time]({name}.svg)\n"
    )


def plot(result: Mapping[str, Any], path: Path) -> None:
    rows: list[Row] = result["rows"]
    figure, axes = plots().subplots(1, 3, figsize=(12, 3.4))
    times = [row["t_s"] for row in rows]
    for name in ("accepted", "settled"):
        axes[0].plot(times, [row[name] for row in rows], label=name)
    axes[1].plot(times, [row["oldest_s"] for row in rows], label="age of the oldest, s")
    axes[1].plot(times, [row["backlog_per_worker"] for row in rows], label="backlog per worker")
    for name in ("pss_bytes", "parent_rss_bytes"):
        axes[2].plot(times, [(row[name] or 0) / 1e6 for row in rows], label=name.replace("_bytes", ", MB"))
    axes[2].set_ylim(bottom=0)
    for axis in axes:
        axis.set(xlabel="s")
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("burst", "soak"))
    parser.add_argument("--videos", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    is_soak = options.kind == "soak"
    videos = options.videos or (5000 if is_soak else 10_000)
    with temporary_folder() as folder:
        result = run(options.kind, videos, options.workers or (1 if is_soak else 2), folder, 200 if is_soak else None)
    if is_soak:
        worst = max(result["growth"][name]["grown"] for name in ("parent_rss_bytes", "pss_bytes", "rss_bytes"))
        result["ok"] = result["ok"] and worst <= MOST_GROWTH
    name = f"fleet-{options.kind}"
    write_json(name, result, options.out)
    plot(result, options.out / f"{name}.svg")
    (options.out / f"{name}.md").write_text(page(result, name))
    say(page(result, name))
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
