from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from pipeline.errors import FatalError, Reason, TransientError
from pipeline.stores.ledger import Ledger
from workers import bootstrap
from workers.bootstrap import open_ledger
from workers.settings import Settings

DOWN = TransientError(Reason.DATABASE_UNAVAILABLE, "connection refused")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(bootstrap, "DATABASE_LOOK_S", 0.01)
    monkeypatch.setenv("VIDEOSIEVE_DATABASE__URL", "postgresql://nobody@127.0.0.1:1/none")
    return Settings()


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> Iterator[list[None]]:
    """Ledgers whose checks come out so, one after the other."""
    left, asked = list(answers), list[None]()

    def check(self: Ledger) -> None:
        asked.append(None)
        answer = left.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(Ledger, "check", check)
    with capture_logs():
        yield asked


def test_a_database_that_is_starting_is_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch, DOWN, DOWN, None) as asked, open_ledger(settings, wait_s=30):
        pass
    assert len(asked) == 3


def test_one_that_stays_away_is_an_error_when_the_time_is_over(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(monkeypatch, DOWN, DOWN) as asked, pytest.raises(TransientError), open_ledger(settings):
        _never()
    assert len(asked) == 1


def test_a_schema_that_is_too_old_is_not_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    outdated = FatalError(Reason.SCHEMA_OUTDATED, "upgrade")
    with answering(monkeypatch, outdated) as asked, pytest.raises(FatalError), open_ledger(settings, wait_s=30):
        _never()
    assert len(asked) == 1


def _never() -> NoReturn:
    raise AssertionError("opened")
