"""The composition root: settings in, built components out. Nothing else reads settings or builds stores.

On a laptop nothing has to be configured: where no database or endpoint is set, the ones that `videosieve up` is
running in `data_dir` are used, and a database of our own is started for the time of one command where it is not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline import policies
from pipeline.cascade.policy import Policy
from pipeline.errors import Reason, UserError
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from pipeline.stores import migrate
from pipeline.stores.aws import Clients, Wiring, connect
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from pipeline.stores.queue import Queue, Queues
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from workers.local import EmbeddedPostgres
from workers.settings import DecoderSettings, Settings

SERVICES_FILE = "services.json"


@dataclass(frozen=True, slots=True)
class LocalServices:
    """What a running `videosieve up` offers to other commands of the same data folder."""

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

    @classmethod
    def remove(cls, data_dir: Path) -> None:
        """Withdraw what this process wrote; another `up`'s word stays."""
        found = cls.running(data_dir)
        if found is not None and found.pid == os.getpid():
            (data_dir / SERVICES_FILE).unlink(missing_ok=True)

    @classmethod
    def running(cls, data_dir: Path) -> LocalServices | None:
        """The services of a live `up`, None where there is none."""
        try:
            found = cls(**json.loads((data_dir / SERVICES_FILE).read_text()))
            os.kill(found.pid, 0)
        except (OSError, ValueError, TypeError):
            return None
        return found


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
    elif local := LocalServices.running(settings.data_dir):
        yield local.database_url
    else:
        with EmbeddedPostgres(settings.data_dir) as postgres:
            migrate.upgrade(postgres.url)  # our own, so ours to keep current
            yield postgres.url


@contextmanager
def open_ledger(settings: Settings) -> Iterator[Ledger]:
    """The ledger, its schema checked. Raises FatalError(SCHEMA_OUTDATED), TransientError(DATABASE_UNAVAILABLE)."""
    with database_url(settings) as url:
        ledger = Ledger.connect(url)
        try:
            ledger.check()
            yield ledger
        finally:
            ledger.close()


@contextmanager
def open_services(settings: Settings) -> Iterator[Services]:
    """Ledger, objects and queues."""
    with ExitStack() as stack:
        clients = open_clients(settings)
        stack.callback(clients.close)
        ledger = stack.enter_context(open_ledger(settings))
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
        dead_letter=settings.queues.dead_letter,
    )


def open_queues(settings: Settings, clients: Clients) -> Queues:
    names = settings.queues
    return Queues(
        uploads=Queue(clients.sqs, names.uploads),
        backfill=Queue(clients.sqs, names.backfill),
        dead_letter=Queue(clients.sqs, names.dead_letter),
    )


def open_registry(settings: Settings) -> Registry:
    return Registry(models_dir(settings), extra_catalog=settings.models.extra_catalog)


def open_models(settings: Settings) -> ModelStore:
    return ModelStore(open_registry(settings), device=settings.models.device, threads=settings.models.threads)


def models_dir(settings: Settings) -> Path:
    """Where weights lie: as set, else the user's cache folder (XDG)."""
    if settings.models.dir is not None:
        return settings.models.dir
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "videosieve" / "models"


def open_decoders(settings: DecoderSettings, *, processes: int | None = None) -> DecoderPool:
    limits = Limits(
        max_file_bytes=settings.max_file_bytes,
        max_duration_s=settings.max_duration_s,
        max_pixels=settings.max_pixels,
        wall_s=settings.wall_s,
        cpu_s=settings.cpu_s,
        memory_bytes=settings.memory_bytes,
    )
    return DecoderPool(processes or settings.processes, limits)


def active_policy(settings: Settings) -> Policy:
    return policies.load(settings.policy)


def policy_document(policy: Policy) -> dict[str, object]:
    """A policy as it is kept in the ledger, so that a verdict can be traced to what was asked."""
    document: dict[str, object] = policy.model_dump(mode="json", exclude_none=True)
    return document


def check_models(policy: Policy, models: ModelStore) -> None:
    """Load every model of `policy` now, so that a missing or altered file is a line at start, not a night's backlog."""
    for stage in policy.decision.stages:
        scorer = models.scorer(stage.model, stage.input_px)
        pinned = policy.decision.models[stage.model]
        if scorer.weights_sha256 != pinned:
            raise UserError(
                Reason.BAD_POLICY,
                f"policy '{policy.name}' pins {stage.model} to SHA-256 {pinned}, but the catalogue has "
                f"{scorer.weights_sha256}: pin that one, or install the pinned weights",
            )
