"""Uploads that name other files or servers: none is looked at, whatever the upload is called."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pipeline.errors import PermanentError, Reason
from pipeline.media import KeyframeSettings
from pipeline.video.limits import Limits
from pipeline.video.opening import read_index
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests.hostile.attacks import attacks
from tests.hostile.canary import CanaryFile, CanaryServer
from tests.hostile.distorting import plain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the canary file needs inotify")

NAMES = ("a.mp4", "a.m3u8", "a.ffconcat", "a.mpd", "a.sdp", "a.mkv", "a%03d.jpg", "concat:a", "a.ts", "a")
SETTINGS = KeyframeSettings()


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanaryFile]:
    """A real video: somebody who read it would find its pictures."""
    folder = tmp_path_factory.mktemp("secret")
    with closing(CanaryFile(folder / "secret.ts", plain(folder / "copy.ts"))) as file:
        yield file


@pytest.fixture(scope="module")
def server() -> Iterator[CanaryServer]:
    with CanaryServer() as listening:
        yield listening


def test_the_canaries_sing(tmp_path: Path) -> None:
    with closing(CanaryFile(tmp_path / "x", b"x")) as file, CanaryServer() as server:
        before = file.was_touched
        file.path.read_bytes()
        assert (before, file.was_touched) == (False, True)
        with pytest.raises(OSError):
            urllib.request.urlopen(server.url)  # noqa: S310 - a server of this test's own
        assert server.connections == 1


def test_an_attack_is_turned_away_and_looks_at_nothing_else(
    tmp_path: Path, secret: CanaryFile, server: CanaryServer
) -> None:
    with DecoderPool(1) as pool:
        for number, attack in enumerate(attacks(tmp_path, secret.path, server.url)):
            path = tmp_path / NAMES[number % len(NAMES)]
            path.write_bytes(attack.data)
            reason = None
            with LocalSource(path) as source:
                try:
                    pool.extract(source, SETTINGS)
                except PermanentError as error:
                    reason = error.reason
            if attack.is_plain:
                assert reason in {Reason.NOT_A_VIDEO, Reason.UNSUPPORTED_CODEC}, attack.name
            assert not secret.was_touched, attack.name
            assert server.connections == 0, attack.name


def test_ffmpeg_alone_looks_at_nothing_else_either(tmp_path: Path, secret: CanaryFile, server: CanaryServer) -> None:
    """Without the sandbox, which would forbid it anyway."""
    for attack in attacks(tmp_path, secret.path, server.url):
        path = tmp_path / "attack.mov"
        path.write_bytes(attack.data)
        with LocalSource(path) as source, suppress(PermanentError):
            read_index(source, Limits())
        assert not secret.was_touched, attack.name
        assert server.connections == 0, attack.name


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_sees_no_other_file_opened_and_no_connection(tmp_path: Path) -> None:
    secret = tmp_path / "secret.ts"
    plain(secret)
    folder = tmp_path / "uploads"
    folder.mkdir()
    url = "http://127.0.0.1:9"
    for number, attack in enumerate(attacks(tmp_path, secret, url)):
        (folder / f"{number:03d}.mp4").write_bytes(attack.data)
    script = f"""
from pathlib import Path
from pipeline.errors import PermanentError
from pipeline.media import KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
with DecoderPool(1) as pool:
    for path in sorted(Path({str(folder)!r}).iterdir()):
        with LocalSource(path) as source:
            try:
                pool.extract(source, KeyframeSettings())
            except PermanentError:
                pass
    print("done")
"""
    log = tmp_path / "strace.log"
    ran = subprocess.run(
        [
            "strace",
            "-f",
            "-qq",
            "-e",
            "trace=%file,socket,connect,bind,sendmsg",
            "-o",
            str(log),
            sys.executable,
            "-c",
            script,
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if "ptrace" in ran.stderr.lower():
        pytest.skip(f"strace may not trace here: {ran.stderr.strip()[:200]}")
    assert ran.stdout == "done\n", ran.stderr
    calls = log.read_text(errors="replace")
    assert str(folder) in calls
    assert "secret" not in calls
    assert not re.search(r"AF_(INET|NETLINK|PACKET)", calls)
