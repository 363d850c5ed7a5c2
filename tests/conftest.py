"""Fixtures shared by all tests. Services start only when a test asks for one, once for each test process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.stores import aws as aws_clients
from pipeline.stores.aws import Clients, Wiring
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from pipeline.stores.queue import Queue, Queues
from tests import services
from workers.local.aws import AWS_KEY, AWS_SECRET, EmbeddedAws
from workers.local.postgres import EmbeddedPostgres


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder for services of a test's own.

    Not `tmp_path`: as root PostgreSQL runs as another user, and pytest, whenever another session starts, closes
    its folder to everybody else.
    """
    with tempfile.TemporaryDirectory(prefix="vs-data-") as folder:
        yield Path(folder)


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


@pytest.fixture(scope="session")
def aws() -> Iterator[EmbeddedAws]:
    """A running S3 and SQS emulator that must keep running; tests that stop one start their own."""
    with services.running_aws() as server:
        yield server


@pytest.fixture(scope="session")
def clients(aws: EmbeddedAws) -> Iterator[Clients]:
    connected = aws_clients.connect(endpoint_url=aws.endpoint_url, access_key_id=AWS_KEY, secret_access_key=AWS_SECRET)
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def objects(clients: Clients) -> Iterator[ObjectStore]:
    store = ObjectStore(clients.s3)
    yield store
    store.close()


@pytest.fixture
def bucket(objects: ObjectStore) -> str:
    """The name of a new, empty bucket without versions."""
    name = f"bucket-{uuid4().hex}"
    objects.ensure_bucket(name)
    return name


@pytest.fixture
def queue(clients: Clients) -> Queue:
    """A new, empty queue."""
    name = f"queue-{uuid4().hex}"
    clients.sqs.create_queue(QueueName=name)
    return Queue(clients.sqs, name)


@pytest.fixture
def stack(clients: Clients) -> Wiring:
    """The names of new buckets and queues, wired like a deployment's."""
    token = uuid4().hex
    wiring = Wiring(
        originals=f"originals-{token}",
        artifacts=f"artifacts-{token}",
        uploads=f"uploads-{token}",
        backfill=f"backfill-{token}",
        escalation=f"escalation-{token}",
        dead_letter=f"dead-letter-{token}",
    )
    aws_clients.wire(clients, wiring)
    return wiring


@pytest.fixture
def queues(clients: Clients, stack: Wiring) -> Queues:
    """The queues of `stack`."""
    names = (stack.uploads, stack.backfill, stack.escalation, stack.dead_letter)
    return Queues(*(Queue(clients.sqs, name) for name in names))
