from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import Reason
from pipeline.video.sandbox import DecoderPool
from tests.hostile import fuzz

SEED = 1


def test_three_hundred_mutants_all_end_in_keyframes_or_a_reason() -> None:
    results = fuzz.fuzz(300, SEED, None)
    assert len(results) == 300
    assert [result for result in results if result.is_offender] == []
    assert {result.outcome for result in results} <= {"keyframes", *map(str, Reason)}
    assert max(result.wall_s for result in results) < fuzz.LIMITS.wall_s


def test_a_mutant_can_be_made_again() -> None:
    assert fuzz.mutant(SEED, 7) == fuzz.mutant(SEED, 7)
    assert fuzz.mutant(SEED, 7) != fuzz.mutant(SEED + 1, 7)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(1, fuzz.LIMITS) as shared:
        yield shared


@pytest.mark.parametrize(
    ("seed", "number", "why"),
    [
        (1, 355, "a stream of subtitles made PyAV import a module in the confined child"),
        (2, 2858, "a key without its sequence header decoded in one of two decoders only, and no image came"),
    ],
)
def test_what_once_went_wrong_does_not_again(
    pool: DecoderPool, tmp_path: Path, seed: int, number: int, why: str
) -> None:
    made, data = fuzz.mutant(seed, number)
    path = tmp_path / f"mutant{Path(made.split()[0]).suffix}"
    path.write_bytes(data)
    result = fuzz.tried(pool, path, number, made)
    assert not result.is_offender, (why, result)
