"""A whole fleet in small: real stores, real decoder children, a tiny model, workers in this process or as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from pipeline import policies
from pipeline.cascade.policy import Policy
from pipeline.models.registry import Registry
from pipeline.models.runner import ModelStore
from pipeline.runs import RunView
from pipeline.stores.aws import Wiring
from pipeline.stores.ledger import Ledger
from pipeline.stores.objects import ObjectStore
from pipeline.stores.queue import Queues
from pipeline.video.limits import Limits
from pipeline.video.sandbox import DecoderPool
from pipeline.video.synthesis import write_clip
from tests.models import tiny
from tests.waiting import wait_for
from workers.bootstrap import Services
from workers.consumer import Consumer
from workers.flight import Flights
from workers.local.aws import AWS_KEY, AWS_SECRET, EmbeddedAws
from workers.metrics import Metrics
from workers.policies import PolicyBook
from workers.screening import Screener
from workers.settings import WorkerSettings
from workers.worker import screening_lanes

POLICY = """
schema_version: 2
name: colours
decision:
  keyframes: {per_minute: 60, min_gap_s: 0.2}
  models: {means: SHA}
  questions:
    red: {text: "Is it red?"}
    blue: {text: "Is it blue?"}
  stages:
    - name: detector
      model: means
      answers:
        red: {labels: [red], positive_at: 0.7, negative_at: 0.3}
        blue: {labels: [blue], positive_at: 0.7, negative_at: 0.3}
commercial:
  owner: colour-team
  prices: {cpu_second: 0.00001, vlm: {token_in: 0.000001}, review_minute: 0.1}
"""

TIERS = """
schema_version: 2
name: tiers
decision:
  keyframes: {per_minute: 60, min_gap_s: 0.2}
  models: {means: CHEAP, mid: MID}
  questions:
    red: {text: "Is it red?"}
  stages:
    - name: cheap
      model: means
      answers:
        red: {labels: [red], positive_at: 0.7, negative_at: 0.3}
    - name: dear
      model: mid
      answers:
        red: {labels: [red], positive_at: 0.5, negative_at: 0.45}
commercial:
  owner: colour-team
  prices: {cpu_second: 0.001, vlm: {token_in: 0.000001}, review_minute: 0.1}
"""

RED, BLUE, PURPLE = (0, 0, 255), (255, 0, 0), (128, 0, 128)


def colour_clip(path: Path, bgr: tuple[int, int, int], *, frames: int = 12) -> Path:
    """A small clip of one colour, never the same bytes twice."""
    image = np.full((96, 128, 3), bgr, np.uint8)
    image[:8, :8] = np.random.default_rng().integers(0, 255, (8, 8, 3), np.uint8)
    write_clip(path, [image] * frames, 12)
    return path


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models that say how blue, green and red an image is, their catalogue, a policy for one and one
    for both."""
    folder = tmp_path_factory.mktemp("weights")
    model = tiny.channel_means()
    (folder / "tiny.onnx").write_bytes(model)
    fields = tiny.fields(
        model, head="classifier", labels=["blue", "green", "red"], preprocess={"layout": "NHWC", "scale": [1 / 255] * 3}
    )
    mid = tiny.channel_means(layout="NCHW")
    (folder / "mid.onnx").write_bytes(mid)
    mid_fields = tiny.fields(
        mid, head="classifier", labels=["blue", "green", "red"], file="mid.onnx", preprocess={"scale": [1 / 255] * 3}
    )
    tiny.catalogue(folder, {"means": fields, "mid": mid_fields})
    (folder / "tiers.yaml").write_text(
        TIERS.replace("CHEAP", str(fields["sha256"])).replace("MID", str(mid_fields["sha256"]))
    )
    (folder / "colours.yaml").write_text(POLICY.replace("SHA", str(fields["sha256"])))
    return folder


@pytest.fixture
def policy(weights: Path) -> Policy:
    return policies.load(str(weights / "colours.yaml"))


@pytest.fixture(scope="session")
def decoders() -> Iterator[DecoderPool]:
    with DecoderPool(2, Limits(wall_s=20)) as pool:
        yield pool


@pytest.fixture
def services(ledger: Ledger, objects: ObjectStore, queues: Queues) -> Services:
    return Services(ledger, objects, queues)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The stores of one test, and workers on them."""

    services: Services
    stack: Wiring
    policy: Policy
    weights: Path
    decoders: DecoderPool
    metrics: Metrics

    def upload(self, path: Path, key: str | None = None) -> str:
        """Put a file into the originals bucket as a client would; its key."""
        key = key or f"{uuid4().hex}/{path.name}"
        self.services.objects.put(self.stack.originals, key, path.read_bytes(), "video/mp4")
        return key

    @contextmanager
    def worker(self, *, lease_s: float = 30.0, concurrency: int = 2, has_vlm: bool = False) -> Iterator[Consumer]:
        """A worker in this process for the length of the `with` block."""
        models = ModelStore(Registry(self.weights, extra_catalog=self.weights / "extra.yaml"))
        flights = Flights(self.services.ledger, self.metrics, lease_s=lease_s)
        screener = Screener(
            services=self.services,
            policies=PolicyBook(self.services.ledger, self.policy, max_age_s=0),
            extractor=self.decoders,
            models=models,
            metrics=self.metrics,
            worker="in-process",
            artifacts_bucket=self.stack.artifacts,
            lease_s=lease_s,
            has_vlm=has_vlm,
        )
        self.services.ledger.remember_policy(self.policy.name, self.policy.decision_hash, self.policy.document())
        consumer = Consumer(
            screening_lanes(self.services.queues, WorkerSettings()),
            self.services.queues.dead_letter,
            screener,
            flights,
            self.metrics,
            concurrency=concurrency,
            lease_s=lease_s,
            poll_wait_s=1,
        )
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            yield consumer
        finally:
            consumer.stop()
            thread.join()
            flights.close()

    def runs(self) -> list[RunView]:
        return self.services.ledger.runs(limit=1000)

    def wait_until_settled(self, count: int, *, timeout_s: float = 60) -> list[RunView]:
        """All runs, once there are `count` and none waits for a machine any more."""

        def settled() -> bool:
            found = self.services.ledger.counts()
            return sum(found.values()) >= count and not any(number for state, number in found.items() if state.is_open)

        wait_for(settled, timeout_s=timeout_s)
        return self.runs()

    def wait_until_empty(self) -> None:
        """Once neither lane holds a message, seen or hidden."""
        queues = self.services.queues
        wait_for(lambda: not any(any(queue.depth().values()) for queue in queues.lanes.values()))

    def dead_letters(self) -> list[Mapping[str, str]]:
        """The attributes of everything in the dead-letter queue."""
        messages = self.services.queues.dead_letter.receive(wait_s=0, visibility_s=0)
        return [message.attributes | {"body": message.body} for message in messages]


@pytest.fixture
def fleet(services: Services, stack: Wiring, policy: Policy, weights: Path, decoders: DecoderPool) -> Fleet:
    return Fleet(services, stack, policy, weights, decoders, Metrics(CollectorRegistry()))


StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_worker(fleet: Fleet, aws: EmbeddedAws, database_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts `videosieve worker`, or another command, as a process of its own; what still runs at the end is killed."""
    running: list[subprocess.Popen[bytes]] = []
    environment = os.environ | fleet_environment(fleet, aws, database_url)

    def start(command: str = "worker", **settings: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"worker-{len(running)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.cli", command], env=environment | settings, stderr=log, stdout=log
            )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


def fleet_environment(fleet: Fleet, aws: EmbeddedAws, database_url: str) -> dict[str, str]:
    """The settings by which a process of its own finds this fleet."""
    stack = fleet.stack
    return {
        "VIDEOSIEVE_AWS__ENDPOINT_URL": aws.endpoint_url,
        "VIDEOSIEVE_AWS__ACCESS_KEY_ID": AWS_KEY,
        "VIDEOSIEVE_AWS__SECRET_ACCESS_KEY": AWS_SECRET,
        "VIDEOSIEVE_DATABASE__URL": database_url,
        "VIDEOSIEVE_STORAGE__ORIGINALS_BUCKET": stack.originals,
        "VIDEOSIEVE_STORAGE__ARTIFACTS_BUCKET": stack.artifacts,
        "VIDEOSIEVE_QUEUES__UPLOADS": stack.uploads,
        "VIDEOSIEVE_QUEUES__BACKFILL": stack.backfill,
        "VIDEOSIEVE_QUEUES__ESCALATION": stack.escalation,
        "VIDEOSIEVE_QUEUES__DEAD_LETTER": stack.dead_letter,
        "VIDEOSIEVE_POLICY": str(fleet.weights / "colours.yaml"),
        "VIDEOSIEVE_MODELS__DIR": str(fleet.weights),
        "VIDEOSIEVE_MODELS__EXTRA_CATALOG": str(fleet.weights / "extra.yaml"),
        "VIDEOSIEVE_WORKER__METRICS_PORT": "0",
        "VIDEOSIEVE_WORKER__POLL_WAIT_S": "1",
        "VIDEOSIEVE_LOG__FORMAT": "json",
    }
