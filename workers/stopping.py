"""Telling a process to stop: SIGTERM and SIGINT as an event that its main thread waits for."""

from __future__ import annotations

import signal
import threading

_LOOK_S = 0.2
"""The kernel may hand a signal to any thread, and only a main thread that runs handles it: so it looks now and then.
Seen with SIGCONT and SIGTERM in close succession."""


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set from now on. For a process's main thread only."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def wait_for_stop(stopping: threading.Event) -> None:
    """Return once `stopping` is set."""
    while not stopping.wait(_LOOK_S):
        pass
