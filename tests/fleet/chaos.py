"""The torture test: `make chaos`.

    python -m tests.fleet.chaos [--videos 500] [--workers 3] [--kills 32] [--seed 5]

Short videos, slow ones and poison among them, are uploaded; workers are killed and paused past their leases, messages
are doubled and reordered, ministack and PostgreSQL are restarted, gently and by SIGKILL. A seed says what happens at
which progress. Afterwards every video has exactly one outcome, the right one, or this exits with 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import VideosieveError
from tests.fleet import footage
from tests.fleet.footage import Clip
from tests.fleet.load import Item, Uploaded, put
from tests.fleet.processes import wait_until_gone
from tests.fleet.reports import FOLDER, say, table, write_json
from tests.fleet.stand import Stand, temporary_folder
from tests.fleet.verdicts import account
from tests.fleet.worker import WorkerProcess

LEASE_S = 4
PAUSE_S = 6.0
"""Longer than the lease: another worker takes the run meanwhile."""
RECONCILE_EVERY_S = 15.0
WORKER = {
    "VIDEOSIEVE_WORKER__LEASE_S": str(LEASE_S),
    "VIDEOSIEVE_WORKER__POLL_WAIT_S": "1",
    "VIDEOSIEVE_WORKER__GRACE_S": "5",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. `share_poison` and `share_slow` are of all videos."""

    videos: int = 500
    workers: int = 3
    kills: int = 32
    pauses: int = 6
    restarts: int = 2
    share_poison: float = 0.05
    share_slow: float = 0.02
    garbage: int = 3
    ahead: int = 40
    seed: int = 5
    settle_s: float = 240.0


def schedule(plan: Plan) -> list[tuple[int, str]]:
    """What happens once how many videos are settled, in order. The first restart of each service is gentle."""
    dice = random.Random(plan.seed)  # noqa: S311 - a seeded experiment
    moments = [(dice.uniform(0.01, 0.9), "kill") for _ in range(plan.kills)]
    moments += [(dice.uniform(0.05, 0.85), "pause") for _ in range(plan.pauses)]
    for number in range(plan.restarts):
        share = (number + 0.5) / plan.restarts * 0.8
        how = "kill" if number else "stop"
        moments += [(share + dice.uniform(-0.05, 0.05), f"aws {how}"), (share + 0.1, f"postgres {how}")]
    return sorted((int(share * plan.videos), action) for share, action in moments)


def uploads(plan: Plan, folder: Path) -> dict[str, Clip]:
    """What is uploaded, by key, in a seeded order."""
    dice = random.Random(plan.seed)  # noqa: S311 - likewise
    short, poison, slow = footage.short_clips(folder), footage.poison(folder), footage.slow_clip(folder)
    bad, long = round(plan.videos * plan.share_poison), round(plan.videos * plan.share_slow)
    clips = [poison[number % len(poison)] for number in range(bad)] + [slow] * long
    clips += [short[number % len(short)] for number in range(plan.videos - len(clips))]
    dice.shuffle(clips)
    return {f"chaos/{number:05d}-{clip.name}.mp4": clip for number, clip in enumerate(clips)}


@dataclass(slots=True)
class Torment:
    """Everything that happens to a stand; what is counted is read afterwards."""

    stand: Stand
    plan: Plan
    expected: Mapping[str, Clip]
    settled: int = 0
    is_over: bool = False
    uploaded: Uploaded = field(default_factory=Uploaded)
    reconciled: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    left_behind: list[int] = field(default_factory=list)
    died_alone: list[str] = field(default_factory=list)
    slots: list[WorkerProcess] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def supervise(self) -> None:
        """Replace workers that ended, as a cluster does."""
        while not self.stop.wait(0.3):
            for number, worker in enumerate(self.slots):
                with self.lock:
                    if worker.code is not None:
                        if worker.code != -9:
                            self.died_alone.append(f"{worker.log.name}: {worker.code}: {_last_line(worker.log)}")
                        self.slots[number] = self.stand.worker(**WORKER)

    def shuffle(self) -> None:
        """Take messages off the lane and send them again later, in another order, half of them twice."""
        dice = random.Random(self.plan.seed + 1)  # noqa: S311 - likewise
        while not (self.stop.wait(1.0) or self.is_over):
            try:
                for message in self.stand.uploads.receive(max_messages=6, wait_s=0, visibility_s=10):
                    copies = dice.choice((1, 2))
                    for _ in range(copies):
                        self.stand.uploads.send(message.body, delay_s=dice.randrange(6))
                    self.stand.uploads.delete(message)
                    self.done["messages reordered"] += 1
                    self.done["messages doubled"] += copies - 1
            except VideosieveError:
                continue

    def reconcile(self) -> None:
        """Run `videosieve reconcile` now and then, as a cluster's schedule does."""
        while not self.stop.wait(RECONCILE_EVERY_S):
            self.reconciled.append(_reconcile(self.stand))

    def upload(self) -> None:
        """Upload everything, always a little ahead of the workers."""

        def paced() -> Iterator[Item]:
            for number, (key, clip) in enumerate(self.expected.items()):
                while number - self.settled > self.plan.ahead and not self.stop.is_set():
                    time.sleep(0.1)
                yield key, partial(_data, clip)

        self.uploaded = put(self.stand, paced(), threads=2)

    def act(self, action: str) -> None:
        dice = random.Random(self.plan.seed * 1000 + sum(self.done.values()))  # noqa: S311 - likewise
        match action.split():
            case ["kill"]:
                time.sleep(dice.uniform(0, 0.3))
                with self.lock:
                    self.left_behind += self._victim(dice).kill()
            case ["pause"]:
                worker = self._victim(dice)
                worker.pause()
                threading.Timer(PAUSE_S, worker.resume).start()
            case ["aws", how]:
                (self.stand.aws.kill if how == "kill" else self.stand.aws.stop)()
                time.sleep(dice.uniform(0.5, 2))
                self.stand.start_aws()
            case ["postgres", how]:
                (self.stand.postgres.kill if how == "kill" else self.stand.postgres.stop)()
                time.sleep(dice.uniform(0.5, 2))
                self.stand.postgres.start()
        self.done[action] += 1

    def _victim(self, dice: random.Random) -> WorkerProcess:
        """A living worker, one that has begun to work where there is one."""
        living = [worker for worker in self.slots if worker.code is None] or self.slots
        begun = [worker for worker in living if "worker_started" in worker.log.read_text(errors="replace")]
        return dice.choice(begun or living)


@contextmanager
def _running(*targets: Callable[[], object], stop: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def _data(clip: Clip) -> bytes:
    return clip.data


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:300]


def run(plan: Plan, folder: Path) -> dict[str, Any]:
    """The whole experiment; its result."""
    settings = footage.colour_policy(folder / "weights")
    expected = uploads(plan, folder / "clips")
    with Stand(folder / "stand", settings) as stand:
        torment = Torment(stand, plan, expected)
        torment.slots = [stand.worker(**WORKER) for _ in range(plan.workers)]
        start_s = time.monotonic()
        garbage = [f"garbage {number}" for number in range(2 * plan.garbage)]
        for body in garbage[: plan.garbage]:
            stand.uploads.send(body)
        threads = (torment.supervise, torment.shuffle, torment.upload, torment.reconcile)
        with _running(*threads, stop=torment.stop):
            _torment(torment)
            torment.is_over = True
            for body in garbage[plan.garbage :]:
                stand.uploads.send(body)
            tormented_s = time.monotonic() - start_s
            _settle(torment, len(expected))
        took_s = time.monotonic() - start_s
        return _result(torment, garbage) | {"seconds_tormented": round(tormented_s, 1), "seconds": round(took_s, 1)}


def _torment(torment: Torment) -> None:
    """Carry out the schedule as videos settle."""
    for due, action in schedule(torment.plan):
        while (settled := torment.stand.books.settled()) < due:
            torment.settled = max(torment.settled, settled)
            time.sleep(0.1)
        torment.settled = settled
        say(f"{settled:5d} settled: {action}")
        torment.act(action)


def _settle(torment: Torment, count: int) -> None:
    """Leave the workers alone until all is settled."""
    torment.settled = count  # the uploader need not wait any more
    deadline_s = time.monotonic() + torment.plan.settle_s
    while time.monotonic() < deadline_s:
        if torment.stand.wait_until_settled(count, timeout_s=10) >= count and torment.stand.wait_until_empty(10):
            return


def _reconcile(stand: Stand, older_than_s: float = 2 * LEASE_S) -> str:
    done = stand.command("reconcile", "--older-than", f"{older_than_s:g}")
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _result(torment: Torment, garbage: list[str]) -> dict[str, Any]:
    stand, expected = torment.stand, torment.expected
    living = stand.living()
    for worker in living:
        worker.resume()
        worker.terminate()
    codes = [worker.wait(60) for worker in living]
    torment.left_behind = wait_until_gone(torment.left_behind, timeout_s=10)
    before = account(stand, expected, garbage=garbage, must_lie_dead=garbage[torment.plan.garbage :])
    torment.reconciled.append(_reconcile(stand, 1.0))
    after = account(stand, expected, garbage=garbage)
    after.dead_letters, after.wrong_dead_letters = before.dead_letters, before.wrong_dead_letters
    after.missing_dead_letters = before.missing_dead_letters
    return {
        "plan": {name: getattr(torment.plan, name) for name in Plan.__slots__},
        "done": dict(torment.done),
        "upload_retries": torment.uploaded.retries,
        "workers_started": len(stand.workers),
        "workers_that_ended_by_themselves": torment.died_alone,
        "exit_codes_at_the_end": codes,
        "processes_left_behind": len(torment.left_behind),
        "orphans_before_reconcile": len(before.orphans),
        "reconcile": torment.reconciled,
        "account": after.as_json(),
        "log_events": _log_events(stand),
        "ok": not after.faults() and not torment.left_behind and not any(codes),
    }


def _log_events(stand: Stand) -> dict[str, int]:
    names = Counter(str(event.get("event")) for worker in stand.workers for event in worker.events())
    return dict(names.most_common(30))


def page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    found: dict[str, Any] = result["account"]
    facts = [[name, value] for name, value in found.items() if name not in {"faults", "states"}]
    rows = [
        ["videos", found["videos"]],
        *([f"state {name}", count] for name, count in found["states"].items()),
        *([name, count] for name, count in result["done"].items()),
        ["workers started", result["workers_started"]],
        ["claims beyond one a video (work begun again)", found["extra_claims"]],
        ["orphan artifacts before reconcile", result["orphans_before_reconcile"]],
        ["processes left behind", result["processes_left_behind"]],
        *([name.replace("_", " "), len(value)] for name, value in facts if isinstance(value, list)),
        ["seconds", result["seconds"]],
        ["holds", "yes" if result["ok"] else f"no: {found['faults']}"],
    ]
    return (
        "# Chaos\n\nWritten by `make chaos`; what it means stands in [fleet](fleet.md).\n\n"
        + table(["what", "how many"], rows)
        + f"\nSeed {result['plan']['seed']}, {result['plan']['workers']} workers, lease {LEASE_S} s.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("videos", 500), ("workers", 3), ("kills", 32), ("seed", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--keep", type=Path, help="a folder for logs and data, kept afterwards")
    options = parser.parse_args()
    plan = Plan(videos=options.videos, workers=options.workers, kills=options.kills, seed=options.seed)
    with temporary_folder() as folder:
        result = run(plan, options.keep or folder)
    write_json("fleet-chaos", result, options.out)
    (options.out / "fleet-chaos.md").write_text(page(result))
    say(page(result))
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
