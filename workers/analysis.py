"""What analysing a video takes, built from the settings: policy, models, decoders.

Needs no store, unless weights are to be had from one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pipeline import policies
from pipeline.cascade.cascade import load_scorer
from pipeline.cascade.policy import Policy
from pipeline.media import ObjectRef
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.source import ByteRange
from workers.bootstrap import open_clients, open_objects
from workers.settings import DecoderSettings, Settings

_PART_BYTES = 8 * 1024 * 1024


def open_registry(settings: Settings) -> Registry:
    return Registry(
        models_dir(settings),
        extra_catalog=settings.models.extra_catalog,
        read_object=lambda bucket, key: _object_parts(settings, bucket, key),
    )


def _object_parts(settings: Settings, bucket: str, key: str) -> Iterator[bytes]:
    """One version of an object, from the fleet's store, which is connected to for its sake alone."""
    with closing(open_clients(settings)) as clients, closing(open_objects(settings, clients)) as objects:
        found = objects.resolve(ObjectRef(bucket, key))
        source = objects.source(found)
        for offset_bytes in range(0, source.size_bytes, _PART_BYTES):
            length_bytes = min(_PART_BYTES, source.size_bytes - offset_bytes)
            yield source.read_ranges([ByteRange(offset_bytes, length_bytes)])[0]


def open_models(settings: Settings) -> ModelStore:
    chosen = settings.models
    return ModelStore(
        open_registry(settings), device=chosen.device, threads=chosen.threads, batch_size=chosen.batch_size
    )


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


def check_models(settings: Settings, policy: Policy) -> None:
    """Load every model of `policy` once, one after the other, and let go of it.

    So a missing or altered file, a label that a model lacks or a device that is not there is a line at start, not a
    night's backlog; and a model that no video needs does not stay in memory.
    """
    for stage in policy.decision.stages:
        load_scorer(open_models(settings), stage, policy)
