"""Outages under load: S3, S3 and SQS together, the database, a full disk.

    python -m tests.fleet.outages [--kind s3|aws|database|disk …] [--seconds 120]

Uploads go on at a steady rate before, during and after. No message may reach the dead-letter queue, nobody's video may
be rejected, work must go on within 30 s of the outage's end without anybody doing anything to the workers, and health
must have shown it. The full disk is a size-limited tmpfs under PostgreSQL's and the emulator's data; where mounting is
not allowed it is left out, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import VideosieveError
from tests.fleet import footage
from tests.fleet.gate import Gate
from tests.fleet.load import Uploaded, put
from tests.fleet.reports import FOLDER, say, table, write_json
from tests.fleet.sampling import Row, Sampler
from tests.fleet.stand import Stand, temporary_folder
from tests.fleet.verdicts import account

KINDS = ("s3", "aws", "database", "disk")
RESUMES_WITHIN_S = 30.0
LEASE_S = 10
DISK_BYTES = 256 * 2**20


class CannotMountError(Exception):
    """A tmpfs cannot be mounted here."""


@contextmanager
def tmpfs(folder: Path) -> Iterator[None]:
    """A size-limited disk at `folder`. Raises CannotMountError."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotMountError("there is no mount command") from None
    if done.returncode != 0:
        raise CannotMountError(done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


class Outage:
    """Begins and ends one kind of outage on a stand."""

    def __init__(self, kind: str, stand: Stand, gate: Gate, disk: Path) -> None:
        self._kind, self._stand, self._gate = kind, stand, gate
        self._filler = disk / "filler"

    def begin(self) -> None:
        match self._kind:
            case "s3":
                self._gate.fail_s3(True)
            case "aws":
                self._stand.aws.stop()
            case "database":
                self._stand.postgres.stop()
            case _:
                self.fill()

    def fill(self) -> None:
        """Write until nothing more fits."""
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as filler:
            while True:
                filler.write(bytes(65536))
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as filler:
            while True:
                filler.write(bytes(512))

    def hold(self) -> None:
        """Called each second while it lasts: what is freed meanwhile is filled again."""
        if self._kind == "disk":
            self.fill()

    def end(self) -> None:
        match self._kind:
            case "s3":
                self._gate.fail_s3(False)
            case "aws":
                self._stand.start_aws()
            case "database":
                self._stand.postgres.start()
            case _:
                self._filler.unlink()
                self._stand.postgres.start()  # it ends itself when it cannot write; a cluster starts it again
                self._stand.start_aws()


def run(kind: str, seconds: float, folder: Path, *, workers: int = 2, per_s: float = 2.0) -> dict[str, Any]:
    """One outage. Raises CannotMountError where a disk cannot be made small here."""
    settings = footage.colour_policy(folder / "weights") | {
        "VIDEOSIEVE_WORKER__LEASE_S": str(LEASE_S),
        "VIDEOSIEVE_WORKER__POLL_WAIT_S": "1",
    }
    clips = footage.short_clips(folder / "clips")
    before_s = min(10.0, seconds)
    count = round(per_s * (before_s + seconds + 10))
    expected = {f"outage/{n:05d}.mp4": clip for n, clip in zip(range(count), itertools.cycle(clips), strict=False)}
    disk = folder / f"disk-{kind}"
    with ExitStack() as stack:
        if kind == "disk":
            stack.enter_context(tmpfs(disk))
        home = disk if kind == "disk" else folder / kind
        stand = stack.enter_context(Stand(folder / kind, settings, aws_dir=home, postgres_dir=home))
        gate = stack.enter_context(Gate(stand.aws.endpoint_url))
        for _ in range(workers):
            stand.worker(VIDEOSIEVE_AWS__ENDPOINT_URL=gate.endpoint_url)
        done = Uploaded()
        items = [(key, partial(getattr, clip, "data")) for key, clip in expected.items()]
        uploading = threading.Thread(target=lambda: put(stand, items, threads=2, per_s=per_s, into=done), daemon=True)
        sampler = stack.enter_context(Sampler(lambda: _health(stand), 1.0))
        uploading.start()
        stand.wait_until_settled(max(1, round(per_s * before_s / 2)), timeout_s=60)
        times = _suffer(Outage(kind, stand, gate, disk), seconds, sampler)
        resumed_s = _resumed(stand)
        uploading.join(300)
        stand.wait_until_settled(count, timeout_s=300)
        emptied = stand.wait_until_empty(2 * LEASE_S + 30)
        recovered_s = _all_ready(sampler, workers, times[1] + RESUMES_WITHIN_S)
        stopped_early = [worker.code for worker in stand.workers if worker.code is not None]
        for worker in stand.living():
            worker.terminate()
            worker.wait(60)
        stand.command("reconcile", "--older-than", "1")  # artifacts of attempts that the outage ended
        found = account(stand, expected)
        events = Counter(str(event.get("event")) for worker in stand.workers for event in worker.events())
    shown = _shown(sampler.rows, times, recovered_s)
    return {
        "kind": kind,
        "seconds": seconds,
        "videos": count,
        "upload_retries": done.retries,
        "resumed_s": resumed_s,
        "lane_emptied": emptied,
        "workers_that_ended": stopped_early,
        "health": shown,
        "log_events": dict(events.most_common(20)),
        "account": found.as_json(),
        "ok": not found.faults() and emptied and not stopped_early and resumed_s <= RESUMES_WITHIN_S and shown["shown"],
    }


def _suffer(outage: Outage, seconds: float, sampler: Sampler) -> tuple[float, float]:
    """Begin, wait, end; when, on the sampler's clock."""
    begun_s = sampler.now_s()
    outage.begin()
    while sampler.now_s() < begun_s + seconds:
        time.sleep(1)
        outage.hold()
    outage.end()
    return begun_s, sampler.now_s()


def _resumed(stand: Stand) -> float:
    """Seconds until a run ends that had not before."""
    start_s, before = time.monotonic(), stand.books.settled()
    while stand.books.settled() <= before and time.monotonic() < start_s + 10 * RESUMES_WITHIN_S:
        time.sleep(0.1)
    return round(time.monotonic() - start_s, 1)


def _all_ready(sampler: Sampler, workers: int, until_s: float) -> float:
    """When a look found all workers ready after what is done by now, or the time that was given for it."""
    start_s = sampler.now_s()
    while (now_s := sampler.now_s()) < max(start_s, until_s):
        if any((row["t_s"] or 0) > start_s and row["/readyz"] == workers for row in list(sampler.rows)):
            break
        time.sleep(0.2)
    return now_s


def _health(stand: Stand) -> Row:
    """How many workers say that they are well and ready, and what has ended so far."""
    pages = {path: [worker.get(path)[0] for worker in stand.living()] for path in ("/healthz", "/readyz")}
    return {
        "settled": stand.books.settled(),
        **{path: float(sum(status == 200 for status in statuses)) for path, statuses in pages.items()},
        **{f"{path} answers": float(sum(status != 0 for status in statuses)) for path, statuses in pages.items()},
    }


def _shown(rows: Sequence[Row], times: tuple[float, float], recovered_s: float) -> dict[str, Any]:
    """Whether every worker was well before, not ready at some time in the outage, and well again at the end."""
    workers = max((row["/readyz answers"] or 0 for row in rows), default=0)
    begun_s, ended_s = times

    def least(path: str, first_s: float, last_s: float) -> float:
        return min((row[path] or 0 for row in rows if first_s <= (row["t_s"] or 0) <= last_s), default=-1.0)

    well = [row for row in rows if (row["t_s"] or 0) < begun_s and row["/readyz"] == workers]
    last = [row for row in rows if (row["t_s"] or 0) <= recovered_s][-1:]
    not_ready_s = [(row["t_s"] or 0) - begun_s for row in rows if begun_s <= (row["t_s"] or 0) and row["/readyz"] == 0]
    return {
        "least_ready": least("/readyz", begun_s, ended_s),
        "least_well": least("/healthz", begun_s, ended_s),
        "not_ready_after_s": round(not_ready_s[0], 1) if not_ready_s else None,
        "shown": bool(well) and bool(not_ready_s) and bool(last) and last[0]["/readyz"] == workers,
    }


def run_all(kinds: Sequence[str], seconds: float, folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for kind in kinds:
        try:
            results[kind] = run(kind, seconds, folder)
            say(f"{kind}: resumed after {results[kind]['resumed_s']} s, ok: {results[kind]['ok']}")
        except CannotMountError as error:
            results[kind] = {"left_out": str(error)}
        except VideosieveError as error:
            results[kind] = {"ok": False, "error": error.detail}
    return {"kind": "outages", "results": results, "ok": all(found.get("ok", True) for found in results.values())}


def page(result: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for kind, found in result["results"].items():
        if "account" not in found:
            rows.append([kind, found.get("left_out") or found.get("error"), *[None] * 6])
            continue
        faults, states = found["account"]["faults"], found["account"]["states"]
        row: list[object] = [kind, found["seconds"], found["resumed_s"], states.get("rejected", 0)]
        row += [found["account"]["dead_letters"], found["health"]["not_ready_after_s"], faults or "none"]
        rows.append([*row, "yes" if found["ok"] else "no"])
    header = ["outage", "s", "resumed after s", "rejected", "dead letters", "not ready after s", "faults", "holds"]
    return (
        "# Outages\n\nWritten by `python -m tests.fleet.outages`; what it means stands in [fleet](fleet.md).\n\n"
        + table(header, rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    with temporary_folder() as folder:
        result = run_all(options.kind or KINDS, options.seconds, folder)
    write_json("fleet-outages", result, options.out)
    (options.out / "fleet-outages.md").write_text(page(result))
    say(page(result))
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
