from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.advice import ADVICE, advice
from pipeline.errors import Reason
from pipeline.video.report import REJECTING

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"


@pytest.mark.parametrize("reason", [*sorted(REJECTING), Reason.DECODE_TIMEOUT, Reason.DECODER_CRASHED])
def test_every_fault_of_a_file_has_a_sentence_for_its_sender(reason: Reason) -> None:
    assert ADVICE[reason].endswith(".")


def test_the_documents_tell_the_same_sentences() -> None:
    page = PAGE.read_text()
    told = {reason: sentence for reason, sentence in ADVICE.items() if reason is not Reason.SUPERSEDED}
    assert [reason.value for reason, sentence in told.items() if f"| `{reason.value}` |" not in page] == []
    assert [reason.value for reason, sentence in told.items() if f"| {sentence} |" not in page] == []


def test_faults_of_others_have_none() -> None:
    assert advice("store_unavailable") is None
    assert advice("moonlight") is None
