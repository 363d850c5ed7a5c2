"""Runs one command and stops it when its owner goes away: `python watchdog.py SIGNAL_NUMBER USER COMMAND…`.

The owner holds the other end of our stdin. The end of that pipe, by a close or by the owner's death, however
sudden, sends SIGNAL_NUMBER to the command, so that it can save its state. A pipe is used and not
PR_SET_PDEATHSIG: it works on macOS, it does not fire when only the *thread* that started us ends, and it
survives a change of user. USER is empty, or whom the command runs as. Only the standard library is imported,
for this starts beside every local service.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading

GRACE_S = 15.0


def main(argv: list[str]) -> int:
    for shielded in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A function and not SIG_IGN: exec resets it, so the command starts with the usual handling.
        signal.signal(shielded, lambda *_: None)
    stop_signal, user, command = int(argv[1]), argv[2] or None, argv[3:]
    identity = pwd.getpwnam(user) if user else None
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        user=identity and identity.pw_uid,
        group=identity and identity.pw_gid,
        extra_groups=[] if identity else None,
    )

    def stop_with_owner() -> None:
        while os.read(0, 4096):
            pass
        child.send_signal(stop_signal)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=stop_with_owner, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
