from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import PermanentError, Reason, TransientError
from pipeline.video.source import ByteRange, LocalSource, coalesce


def test_ranges_come_back_in_the_order_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    with LocalSource(tmp_path / "a") as source:
        assert source.size_bytes == 100
        assert source.read_ranges([ByteRange(90, 5), ByteRange(0, 2)]) == [bytes(range(90, 95)), b"\x00\x01"]


def test_what_lies_past_the_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with LocalSource(tmp_path / "a") as source:
        assert source.read_ranges([ByteRange(1, 10), ByteRange(7, 1)]) == [b"bc", b""]


def test_a_missing_file_is_the_runs_end(tmp_path: Path) -> None:
    with pytest.raises(PermanentError) as raised:
        LocalSource(tmp_path / "none")
    assert raised.value.reason is Reason.NOT_FOUND


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_rejects_nobodys_video(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(TransientError) as raised:
        LocalSource(path)
    assert raised.value.reason is Reason.FORBIDDEN


def test_a_folder_or_a_pipe_is_no_video(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(PermanentError) as raised:
            LocalSource(path)
        assert raised.value.reason is Reason.NOT_A_VIDEO


def test_near_ranges_are_read_as_one() -> None:
    ranges = [ByteRange(100, 10), ByteRange(0, 10), ByteRange(115, 5), ByteRange(102, 3)]
    assert coalesce(ranges, gap_bytes=5) == [ByteRange(0, 10), ByteRange(100, 20)]
