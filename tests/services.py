"""Real services for tests: one embedded PostgreSQL and one S3 and SQS emulator for each test process."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from pipeline.stores import migrate
from workers.local.aws import EmbeddedAws
from workers.local.postgres import EmbeddedPostgres

THROWAWAY = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
_TEMPLATE = "videosieve_template"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_postgres() -> Iterator[EmbeddedPostgres]:
    """A server whose template database has the ledger's schema."""
    with (
        tempfile.TemporaryDirectory(prefix="vs-pg-") as folder,
        EmbeddedPostgres(Path(folder), settings=THROWAWAY) as server,
    ):
        _administer(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_TEMPLATE)))
        migrate.upgrade(server.url_of(_TEMPLATE))
        yield server


@contextmanager
def fresh_database(server: EmbeddedPostgres, *, migrated: bool = True) -> Iterator[str]:
    """The URL of a database of its own, with the schema or empty; dropped afterwards."""
    name = f"test_{uuid4().hex}"
    template = _TEMPLATE if migrated else "template0"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
    _administer(server, create.format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield server.url_of(name)
    finally:
        with contextlib.suppress(psycopg.OperationalError):
            _administer(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def running_aws() -> Iterator[EmbeddedAws]:
    with (
        tempfile.TemporaryDirectory(prefix="vs-aws-") as folder,
        EmbeddedAws(Path(folder), free_port()) as server,
    ):
        yield server


def _administer(server: EmbeddedPostgres, statement: sql.Composed) -> None:
    with contextlib.closing(psycopg.connect(server.url_of("postgres"), autocommit=True)) as connection:
        connection.execute(statement)
