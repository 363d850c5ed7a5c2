"""Whether nothing was lost and nothing was done twice: what every experiment is judged by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tests.fleet.books import Run
from tests.fleet.footage import Clip
from tests.fleet.stand import WIRING, Stand
from tests.fleet.worker import WorkerProcess

MOST_NAMED = 8


@dataclass(slots=True)
class Account:
    """What was found. Every list names offenders and must be empty; the counts are facts."""

    videos: int = 0
    states: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    half_committed: list[str] = field(default_factory=list)
    without_artifacts: list[str] = field(default_factory=list)
    committed_twice: list[str] = field(default_factory=list)
    wrong_dead_letters: list[str] = field(default_factory=list)
    missing_dead_letters: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    dead_letters: int = 0
    extra_claims: int = 0
    artifacts: int = 0

    def faults(self) -> dict[str, int]:
        """How many offenders of each kind; empty where all is well."""
        return {name: len(found) for name, found in asdict(self).items() if isinstance(found, list) and found}

    def as_json(self) -> dict[str, object]:
        return {
            name: found[:MOST_NAMED] if isinstance(found, list) else found for name, found in asdict(self).items()
        } | {"faults": self.faults()}


def account(
    stand: Stand, expected: Mapping[str, Clip], *, garbage: Sequence[str] = (), must_lie_dead: Sequence[str] = ()
) -> Account:
    """Compare ledger, artifacts, dead letters and logs with what was uploaded.

    `garbage` are the bodies that may lie in the dead-letter queue, `must_lie_dead` those that must.
    """
    runs = stand.books.runs()
    found = Account(videos=len(expected), states=dict(Counter(run.state for run in runs)))
    by_key: dict[str, list[Run]] = {key: [] for key in expected}
    for run in runs:
        by_key.setdefault(run.key, []).append(run)
    for key, of_key in by_key.items():
        if key not in expected or len(of_key) > 1:
            found.doubled.append(f"{key}: {len(of_key)} runs")
        elif not of_key or not of_key[0].is_final:
            found.lost.append(f"{key}: {of_key[0].state if of_key else 'no run'}")
        else:
            _judge(of_key[0], expected[key], found)
    found.extra_claims = sum(run.fence for run in runs) - len(runs)
    found.committed_twice = _committed_twice(stand.workers)
    _dead_letters(stand, garbage, must_lie_dead, found)
    _artifacts(stand, runs, found)
    return found


def _judge(run: Run, clip: Clip, found: Account) -> None:
    if clip.rejected is not None:
        is_right = (run.state, run.reason) == ("rejected", clip.rejected.value)
        wanted_verdicts = 0
    else:
        is_right = run.state in ("decided", "in_review") and clip.answers in (None, run.answers)
        wanted_verdicts = 2
    if not is_right:
        found.wrong.append(f"{run.key} ({clip.name}): {run.state} {run.reason} {run.answers}")
    fences = (run.fence,) if wanted_verdicts else ()
    if run.verdicts != wanted_verdicts or run.cost_fences != fences:
        found.half_committed.append(f"{run.key}: {run.verdicts} verdicts, costs of fences {run.cost_fences}")


def _committed_twice(workers: Iterable[WorkerProcess]) -> list[str]:
    commits = Counter(
        str(event.get("run_id"))
        for worker in workers
        for event in worker.events()
        if event.get("event") == "run_committed"
    )
    return [run_id for run_id, count in commits.items() if count > 1]


def _dead_letters(stand: Stand, garbage: Sequence[str], must: Sequence[str], found: Account) -> None:
    letters = stand.dead_letters()
    found.dead_letters = len(letters)
    found.wrong_dead_letters = [
        f"{letter.get('reason')}: {letter['body'][:200]}" for letter in letters if letter["body"] not in garbage
    ]
    bodies = {letter["body"] for letter in letters}
    found.missing_dead_letters = [body for body in must if body not in bodies]


def artifact_keys(stand: Stand) -> list[str]:
    pages = stand.clients.s3.get_paginator("list_objects_v2").paginate(Bucket=WIRING.artifacts)
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


def _artifacts(stand: Stand, runs: Sequence[Run], found: Account) -> None:
    """Each decided run has its result under its fence; what lies elsewhere belongs to nobody."""
    keys = artifact_keys(stand)
    found.artifacts = len(keys)
    present = set(keys)
    results = {run.run_id: run.result_key for run in runs if run.result_key}
    found.without_artifacts = [
        f"{run.key}: {run.result_key}"
        for run in runs
        if run.verdicts and (run.result_key not in present or f"/{run.fence}/" not in str(run.result_key))
    ]
    homes = {str(result).rsplit("/", 1)[0] + "/" for result in results.values()}
    found.orphans = [key for key in keys if not _parents(key) & homes]


def _parents(key: str) -> set[str]:
    """All folders of a key: `a/b/c` → `a/`, `a/b/`."""
    parts = key.split("/")[:-1]
    return {"/".join(parts[: count + 1]) + "/" for count in range(len(parts))}
