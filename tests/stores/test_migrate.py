"""The migrations, against a real PostgreSQL."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from pipeline.errors import FatalError, Reason, UserError
from pipeline.stores import migrate
from pipeline.stores.database import Database
from pipeline.stores.ledger import Ledger
from pipeline.stores.schema import metadata


def test_an_empty_database_is_brought_up_to_date_and_twice_changes_nothing(empty_database_url: str) -> None:
    for _ in range(2):
        migrate.upgrade(empty_database_url)
        ledger = Ledger.connect(empty_database_url)
        ledger.check()
        ledger.close()


def test_many_can_upgrade_at_once(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(migrate.upgrade, [empty_database_url] * 4))
    ledger = Ledger.connect(empty_database_url)
    ledger.check()
    ledger.close()


def test_the_migrations_make_exactly_the_tables_of_the_schema(database_url: str) -> None:
    database = Database.connect(database_url)
    with database.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    database.close()


def test_a_database_without_the_schema_is_told_with_what_to_do(empty_database_url: str) -> None:
    ledger = Ledger.connect(empty_database_url)
    for call in (ledger.check, ledger.tenants, ledger.counts):
        with pytest.raises(FatalError, match="videosieve db upgrade") as caught:
            call()
        assert caught.value.reason is Reason.SCHEMA_OUTDATED
    ledger.close()


@pytest.mark.parametrize(("revision", "is_good"), [("9999", True), (None, False)])
def test_a_newer_schema_is_good_and_none_is_not(database_url: str, revision: str | None, is_good: bool) -> None:
    database = Database.connect(database_url)
    with database.begin() as connection:
        connection.execute(sa.text("DELETE FROM alembic_version"))
        if revision is not None:
            connection.execute(sa.text("INSERT INTO alembic_version VALUES (:r)"), {"r": revision})
    if is_good:
        migrate.check(database)
    else:
        with pytest.raises(FatalError):
            migrate.check(database)
    database.close()


def test_upgrading_leaves_the_programs_logging_alone(empty_database_url: str) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers), logging.getLogger("pipeline").disabled)
    migrate.upgrade(empty_database_url)
    assert (root.level, list(root.handlers), logging.getLogger("pipeline").disabled) == before


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://host/db", "sqlite:///x.db", "postgresql://host:port/db"])
def test_a_url_that_is_not_postgresqls_is_the_users_mistake(url: str) -> None:
    with pytest.raises(UserError) as caught:
        Ledger.connect(url)
    assert caught.value.reason is Reason.BAD_SETTING


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_usual_scheme_of_postgresql_works(database_url: str, scheme: str) -> None:
    ledger = Ledger.connect(database_url.replace("postgresql", scheme, 1))
    ledger.check()
    ledger.close()
