"""Fixtures shared by all tests. Services start only when a test asks for one, once for each test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.stores.ledger import Ledger
from tests import services
from workers.local import EmbeddedPostgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL that must keep running; tests that stop one start their own."""
    with services.running_postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """An empty ledger's database, of this test alone."""
    with services.fresh_database(postgres) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database without the ledger's schema, of this test alone."""
    with services.fresh_database(postgres, migrated=False) as url:
        yield url


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    opened = Ledger.connect(database_url)
    yield opened
    opened.close()
