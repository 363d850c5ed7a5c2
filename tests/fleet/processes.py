"""What a process and all its descendants use, from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Usage:
    """A process tree at one moment. `pss_bytes` shares what is shared out; `cpu_s` counts ended descendants too."""

    cpu_s: float = 0.0
    pss_bytes: int = 0
    rss_bytes: int = 0
    processes: int = 0
    threads: int = 0
    descriptors: int = 0
    memfds: int = 0


def tree(pid: int) -> list[int]:
    """`pid` and its living descendants; empty once it is gone."""
    if not Path(f"/proc/{pid}").exists():
        return []
    found = [pid]
    for parent in found:  # grows while it is walked
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except _GONE:
            continue
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """User and system seconds of the processes and of their children that have ended, whole trees given."""
    return sum(map(_cpu_s, pids))


def own_cpu_s(pid: int) -> float:
    """User and system seconds of one process alone."""
    return _cpu_s(pid, last=13)


def tree_cpu_s(*roots: int) -> float:
    return sum(cpu_s(tree(root)) for root in roots)


def usage(*roots: int) -> Usage:
    """The sum over the trees of `roots`."""
    pids = [pid for root in roots for pid in tree(root)]
    descriptors = [target for pid in pids for target in _descriptors(pid)]
    return Usage(
        cpu_s=cpu_s(pids),
        pss_bytes=sum(_pss_bytes(pid) for pid in pids),
        rss_bytes=sum(_status(pid).get("VmRSS", 0) * 1024 for pid in pids),
        processes=len(pids),
        threads=sum(_status(pid).get("Threads", 0) for pid in pids),
        descriptors=len(descriptors),
        memfds=sum("memfd:" in target for target in descriptors),
    )


def wait_until_gone(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Those of `pids` that still live after `timeout_s`; zombies count as gone."""
    left, deadline_s = list(pids), time.monotonic() + timeout_s
    while (left := [pid for pid in left if _is_alive(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def _is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except _GONE:
        return False


def _cpu_s(pid: int, last: int = 15) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except _GONE:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:last]) * _TICKS_S  # utime, stime, cutime, cstime


def _status(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except _GONE:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name: int(words[0]) for name, text in pairs if (words := text.split()) and words[0].isdigit()}


def _pss_bytes(pid: int) -> int:
    """Proportional set size; the resident size where only that may be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except PermissionError:
        return _status(pid).get("VmRSS", 0) * 1024
    except _GONE:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _descriptors(pid: int) -> list[str]:
    """What each open descriptor leads to; empty where that may not be read."""
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except _GONE:
                continue
    except (*_GONE, PermissionError):
        return found
    return found
