"""The judging worker's process: consumes the escalation lane, and asks the VLM's engine until it is told to stop."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from pipeline.cascade.policy import Policy
from pipeline.chat import Engine
from pipeline.errors import Reason, TransientError, VideosieveError
from pipeline.runs import Lane
from workers.analysis import active_policy
from workers.asking import Canary, LimitedEngine
from workers.bootstrap import Services, open_services
from workers.breakers import Breakers, Dependency
from workers.consumer import Consumer, LaneSpec
from workers.engine import open_engine
from workers.flight import Flights
from workers.health import serving
from workers.judging import Judge
from workers.limiter import AdaptiveLimiter
from workers.logs import get_logger
from workers.metrics import Metrics
from workers.observing import Progress, Sampler
from workers.policies import stored_active_policy
from workers.settings import Settings, VlmSettings, WorkerSettings
from workers.worker import consume_until_stopped

LONGEST_REST_S = 120.0
"""What a run may take beside its answers: the ledger, the pictures, every request failing as slowly as it can."""


@dataclass(frozen=True, slots=True)
class EngineGate:
    """Opens while every dependency works and the engine may be given one more request."""

    breakers: Breakers
    limiter: AdaptiveLimiter
    flights: Flights

    def is_open(self) -> bool:
        return self.breakers.is_open() and self.limiter.may_begin(len(self.flights))

    def saw(self, error: VideosieveError) -> None:
        self.breakers.saw(error)


@dataclass(frozen=True, slots=True)
class Judging:
    """The parts of a running judging worker."""

    consumer: Consumer
    flights: Flights
    breakers: Breakers
    lanes: tuple[LaneSpec, ...]


def run_judge(settings: Settings) -> None:
    """Judge until SIGTERM or SIGINT. Raises FatalError when the set-up is at fault."""
    initial = active_policy(settings)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    metrics = Metrics(registry)
    name = f"{socket.gethostname()}-{os.getpid()}"
    with ExitStack() as stack:
        client = stack.enter_context(open_engine(settings.vlm))
        services = stack.enter_context(open_services(settings, database_wait_s=settings.database.wait_s))
        services.ledger.remember_policy(initial.name, initial.decision_hash, initial.document())
        policy = stored_active_policy(services.ledger, initial)
        metrics.latency_goal.set(policy.commercial.latency_goal_s)
        if policy.decision.vlm is None:
            get_logger().warning("active_policy_asks_no_vlm", policy=policy.name)
        judging = stack.enter_context(
            open_judging(
                services,
                policy,
                client,
                metrics,
                vlm=settings.vlm,
                worker=settings.worker,
                artifacts_bucket=settings.storage.artifacts_bucket,
                name=name,
            )
        )
        sampler = Sampler(judging.consumer, judging.lanes, metrics)
        stack.callback(sampler.close)
        progress = Progress(
            judging.consumer, judging.flights, longest_video_s=2 * settings.vlm.total_s + LONGEST_REST_S
        )
        port = stack.enter_context(
            serving(
                settings.worker.metrics_host,
                settings.vlm.metrics_port,
                registry,
                health=progress.troubles,
                readiness=judging.breakers.troubles,
            )
        )
        get_logger().info("metrics_listening", port=port)
        get_logger().info(
            "judge_started",
            worker=name,
            policy=policy.name,
            decision_hash=policy.decision_hash,
            engine=settings.vlm.url,
        )
        consume_until_stopped(judging.consumer, judging.flights, grace_s=settings.worker.grace_s)


@contextmanager
def open_judging(
    services: Services,
    policy: Policy,
    client: Engine,
    metrics: Metrics,
    *,
    vlm: VlmSettings,
    worker: WorkerSettings,
    artifacts_bucket: str,
    name: str,
) -> Iterator[Judging]:
    """A consumer of the escalation lane, not yet running, and all that it needs, for the length of the `with` block.

    Every run is judged by its own policy; the engine is tried as `policy` asks it until there was one.
    """
    with ExitStack() as stack:
        limiter = AdaptiveLimiter(most=vlm.concurrency, ttft_goal_s=vlm.ttft_goal_s)
        engine = LimitedEngine(client, limiter, metrics)
        canary = Canary(engine, policy.decision.vlm, metrics, least=vlm.canary_least, logprobs=vlm.logprobs)
        breakers = Breakers(
            {
                Dependency.STORE: lambda: _try_store(services, artifacts_bucket, name),
                Dependency.QUEUE: lambda: services.queues.escalation.depth() and None,
                Dependency.DATABASE: services.ledger.probe,
                Dependency.ENGINE: canary.look,
            },
            metrics,
        )
        stack.callback(breakers.close)
        flights = Flights(services.ledger, metrics, lease_s=worker.lease_s)
        stack.callback(flights.close)
        judge = Judge(
            services=services,
            budgets=services.ledger,
            engine=engine,
            canary=canary,
            watch=breakers,
            metrics=metrics,
            worker=name,
            artifacts_bucket=artifacts_bucket,
            lease_s=worker.lease_s,
            logprobs=vlm.logprobs,
        )
        lanes = (LaneSpec(Lane.ESCALATION, services.queues.escalation),)
        consumer = Consumer(
            lanes,
            services.queues.dead_letter,
            judge,
            flights,
            metrics,
            concurrency=vlm.concurrency,
            lease_s=worker.lease_s,
            poll_wait_s=min(worker.poll_wait_s, max(1, int(worker.grace_s) - 2)),
            gate=EngineGate(breakers, limiter, flights),
        )
        stopping = threading.Event()
        thread = threading.Thread(
            target=canary.run, args=(stopping, vlm.canary_every_s, breakers), name="canary", daemon=True
        )
        thread.start()
        stack.callback(thread.join)
        stack.callback(stopping.set)
        yield Judging(consumer, flights, breakers, lanes)


def _try_store(services: Services, bucket: str, name: str) -> None:
    """Use the store as judging does: write a little, read it, take it away."""
    key = f"probes/{name}/judge"
    services.objects.put(bucket, key, b"probe", "application/octet-stream")
    if services.objects.get(bucket, key) != b"probe":
        raise TransientError(Reason.STORE_UNAVAILABLE, f"s3://{bucket}/{key} does not hold what was put")
    services.objects.delete_prefix(bucket, key)
