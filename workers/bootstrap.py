"""The composition root: settings in, built components out. Nothing else reads settings or builds stores.

On a laptop nothing has to be configured: where no database or endpoint is set, the ones that `videosieve up` is
running in `data_dir` are used, and a database of our own is started for the time of one command where it is not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.errors import TransientError
from pipeline.stores import migrate
from pipeline.stores.aws import Clients, Wiring, connect
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from pipeline.stores.queue import Queue, Queues
from workers.local.postgres import EmbeddedPostgres
from workers.local.watched import FolderInUseError, is_owned
from workers.logs import get_logger
from workers.settings import Settings

SERVICES_FILE = "services.json"
UP_LOCK = "up.lock"
DATABASE_LOOK_S = 1.0
START_WAIT_S = 60.0
"""How long a command waits for an `up` that is starting, or for another command that uses the data folder."""


@dataclass(frozen=True, slots=True)
class LocalServices:
    """What a running `videosieve up` offers to other commands of the same data folder.

    It writes this down once all of it is ready, and holds a lock (UP_LOCK) as long as it lives: a file that a killed
    `up` left behind is not believed.
    """

    pid: int
    endpoint_url: str
    access_key_id: str
    secret_access_key: str
    database_url: str
    api_url: str

    def write(self, data_dir: Path) -> None:
        path = data_dir / SERVICES_FILE
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1))
        partial.chmod(0o600)
        partial.replace(path)

    @staticmethod
    def remove(data_dir: Path) -> None:
        """Withdraw it. For the holder of the lock only."""
        (data_dir / SERVICES_FILE).unlink(missing_ok=True)

    @classmethod
    def running(cls, data_dir: Path) -> LocalServices | None:
        """The services of a live `up` that is ready, None where there is none."""
        try:
            if not is_owned(data_dir / UP_LOCK):
                return None
            return cls(**json.loads((data_dir / SERVICES_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Services:
    """What every process of a fleet shares."""

    ledger: Ledger
    objects: ObjectStore
    queues: Queues


def open_clients(settings: Settings, *, endpoint_url: str | None = None) -> Clients:
    """Clients of S3 and SQS: as set, else of what `up` runs, else of AWS by boto3's own chain.

    `endpoint_url` replaces the one that is set.
    """
    aws = settings.aws
    if aws.endpoint_url is None and (local := LocalServices.running(settings.data_dir)):
        return connect(
            endpoint_url=local.endpoint_url,
            region=aws.region,
            access_key_id=local.access_key_id,
            secret_access_key=local.secret_access_key,
        )
    return connect(
        endpoint_url=endpoint_url or aws.endpoint_url,
        region=aws.region,
        access_key_id=aws.access_key_id.get_secret_value() if aws.access_key_id else None,
        secret_access_key=aws.secret_access_key.get_secret_value() if aws.secret_access_key else None,
    )


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """The ledger's database for the length of the `with` block."""
    if settings.database.url is not None:
        yield settings.database.url.get_secret_value()
    elif isinstance(found := _embedded_database(settings.data_dir), LocalServices):
        yield found.database_url
    else:
        with found:
            migrate.upgrade(found.url)  # our own, so ours to keep current
            yield found.url


def _embedded_database(data_dir: Path) -> LocalServices | EmbeddedPostgres:
    """The database of a running `up`, or one that was started for us; waits for whoever is starting or using it."""
    deadline_s = time.monotonic() + START_WAIT_S
    while (local := LocalServices.running(data_dir)) is None:
        postgres = EmbeddedPostgres(data_dir)
        try:
            postgres.start()
            return postgres
        except FolderInUseError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
    return local


@contextmanager
def open_ledger(settings: Settings, *, wait_s: float = 0.0) -> Iterator[Ledger]:
    """The ledger, its schema checked. A database that cannot be reached is waited for up to `wait_s`.

    Raises FatalError(SCHEMA_OUTDATED), TransientError(DATABASE_UNAVAILABLE).
    """
    with database_url(settings) as url:
        ledger = Ledger.connect(url)
        try:
            _check(ledger, until_s=time.monotonic() + wait_s)
            yield ledger
        finally:
            ledger.close()


def _check(ledger: Ledger, *, until_s: float) -> None:
    while True:
        try:
            return ledger.check()
        except TransientError as error:
            if time.monotonic() >= until_s:
                raise
            get_logger().warning("waiting_for_database", reason=error.reason.value, detail=error.detail)
        time.sleep(DATABASE_LOOK_S)


@contextmanager
def open_services(settings: Settings, *, database_wait_s: float = 0.0) -> Iterator[Services]:
    """Ledger, objects and queues. What serves on and on gives a database that is starting `database_wait_s`."""
    with ExitStack() as stack:
        clients = open_clients(settings)
        stack.callback(clients.close)
        ledger = stack.enter_context(open_ledger(settings, wait_s=database_wait_s))
        objects = open_objects(settings, clients)
        stack.callback(objects.close)
        yield Services(ledger, objects, open_queues(settings, clients))


def open_objects(settings: Settings, clients: Clients) -> ObjectStore:
    """The object store; URLs for clients are signed for the public endpoint where there is one."""
    public_url = settings.aws.public_endpoint_url
    presigner = open_clients(settings, endpoint_url=public_url).s3 if public_url else None
    return ObjectStore(clients.s3, presigner=presigner)


def wiring(settings: Settings) -> Wiring:
    """The names of this stack's buckets and queues."""
    return Wiring(
        originals=settings.storage.originals_bucket,
        artifacts=settings.storage.artifacts_bucket,
        uploads=settings.queues.uploads,
        backfill=settings.queues.backfill,
        escalation=settings.queues.escalation,
        dead_letter=settings.queues.dead_letter,
    )


def open_queues(settings: Settings, clients: Clients) -> Queues:
    names = settings.queues
    return Queues(
        uploads=Queue(clients.sqs, names.uploads),
        backfill=Queue(clients.sqs, names.backfill),
        escalation=Queue(clients.sqs, names.escalation),
        dead_letter=Queue(clients.sqs, names.dead_letter),
    )
