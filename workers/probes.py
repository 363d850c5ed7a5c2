"""How a worker finds out whether a dependency works again: by using it as the work would, with nobody's video."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.analyze import Extractor
from pipeline.cascade.cascade import load_scorer
from pipeline.cascade.ports import Models
from pipeline.errors import PermanentError, Reason, TransientError
from pipeline.media import KeyframeSettings, ObjectRef
from pipeline.video.synthesis import write_clip
from workers.bootstrap import Services
from workers.breakers import Dependency, Probe
from workers.policies import PolicyBook

PROBE_BYTES = 512 * 1024
"""More than a keyframe or a page of the database: a disk that takes this takes the work."""


def probes(
    services: Services,
    policies: PolicyBook,
    extractor: Extractor,
    models: Models,
    *,
    artifacts_bucket: str,
    worker: str,
) -> Mapping[Dependency, Probe]:
    """A probe for each dependency of a screening worker."""
    prefix = f"probes/{worker}/"

    def store() -> None:
        key, content = f"{prefix}content", bytes(PROBE_BYTES)
        services.objects.put(artifacts_bucket, key, content, "application/octet-stream")
        if services.objects.get(artifacts_bucket, key) != content:
            raise TransientError(Reason.STORE_UNAVAILABLE, f"s3://{artifacts_bucket}/{key} does not hold what was put")
        services.objects.delete_prefix(artifacts_bucket, prefix)

    def judging() -> None:
        blank, policy = np.zeros((64, 64, 3), np.uint8), policies.active()
        for stage in policy.decision.stages:
            load_scorer(models, stage, policy).score([blank])

    def decoding() -> None:
        """A clip that is known to be sound goes into the store, out of it and through a decoder."""
        key = f"{prefix}known.mp4"
        services.objects.put(artifacts_bucket, key, known_clip(), "video/mp4")
        source = services.objects.source(services.objects.resolve(ObjectRef(artifacts_bucket, key)))
        try:
            extractor.extract(source, KeyframeSettings())
        except PermanentError as error:
            raise TransientError(
                Reason.INTERNAL_ERROR, f"a clip known to be sound is called {error.reason.value}: {error.detail}"
            ) from error
        services.objects.delete_prefix(artifacts_bucket, prefix)

    return {
        Dependency.STORE: store,
        Dependency.QUEUE: lambda: services.queues.uploads.depth() and None,
        Dependency.DATABASE: services.ledger.probe,
        Dependency.MODELS: judging,
        Dependency.DECODING: decoding,
    }


def known_clip() -> bytes:
    """A second of grey, then of white, as MJPEG in MP4: made anew, so that a full disk shows too."""
    pictures = [np.full((64, 96, 3), level, np.uint8) for level in (90, 230) for _ in range(8)]
    with tempfile.TemporaryDirectory(prefix="videosieve-probe-") as folder:
        path = Path(folder) / "known.mp4"
        write_clip(path, pictures, 8, codec="mjpeg", options={})
        return path.read_bytes()
