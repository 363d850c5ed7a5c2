from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import PermanentError, Reason
from pipeline.media import KeyframeSettings
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import LocalSource
from tests.hostile.odd import Odd, Seen, odd_files


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(1) as shared:
        yield shared


@pytest.mark.parametrize("odd", odd_files(), ids=lambda odd: odd.name)
def test_an_odd_file_is_decided_or_turned_away_with_its_reason(pool: DecoderPool, tmp_path: Path, odd: Odd) -> None:
    path = tmp_path / f"odd{odd.suffix}"
    odd.make(path)
    with LocalSource(path) as source:
        if isinstance(odd.becomes, Reason):
            with pytest.raises(PermanentError) as raised:
                pool.extract(source, KeyframeSettings())
            assert raised.value.reason is odd.becomes
            assert raised.value.detail.isprintable()
            return
        found = pool.extract(source, KeyframeSettings())
    assert_seen(odd.becomes, len(found.keyframes), found.images[0].shape[1::-1], found.warnings, found.coverage)


def assert_seen(
    wanted: Seen, keyframes: int, size_px: tuple[int, ...], warnings: tuple[str, ...], coverage: float
) -> None:
    assert keyframes >= wanted.keyframes
    assert wanted.size_px in {None, size_px}
    for beginning in wanted.warnings:
        assert any(warning.startswith(beginning) for warning in warnings), warnings
    if not wanted.warnings:
        assert warnings == ()
    low, high = wanted.coverage
    assert low <= coverage <= high
