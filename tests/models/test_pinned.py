from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import FatalError, Reason
from pipeline.models.pinned import is_pinned, write_pinned

ABC = hashlib.sha256(b"abc").hexdigest()


def test_the_right_content_lands_and_replaces_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    for _ in range(2):
        write_pinned([b"a", b"bc"], target, sha256=ABC, max_bytes=3)
    assert target.read_bytes() == b"abc"
    assert is_pinned(target, ABC)
    assert [path.name for path in target.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("chunks", [[b"abd"], [b""], [b"ab", b"cd"]])
def test_other_content_never_lands(tmp_path: Path, chunks: list[bytes]) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")
    with pytest.raises(FatalError) as caught:
        write_pinned(chunks, target, sha256=ABC, max_bytes=3)
    assert caught.value.reason is Reason.WEIGHTS_ALTERED
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[bytes]:
        yield b"a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pinned(interrupted(), tmp_path / "file", sha256=ABC, max_bytes=3)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_bad_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FatalError, match="cannot write") as caught:
        write_pinned([b"abc"], tmp_path / "file" / "target", sha256=ABC, max_bytes=3)
    assert caught.value.reason is Reason.BAD_SETTING
