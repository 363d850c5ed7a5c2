"""The screening worker's process: builds everything, consumes until it is told to stop, drains."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from pipeline.cascade.policy import Policy
from pipeline.runs import Lane
from pipeline.stores.queue import BATCH_MESSAGES, Queues
from workers.analysis import active_policy, check_models, open_decoders, open_models
from workers.bootstrap import open_services
from workers.breakers import Breakers
from workers.consumer import Consumer, LaneSpec
from workers.flight import Flights
from workers.health import serving
from workers.logs import get_logger
from workers.metrics import Metrics
from workers.observing import Progress, Sampler
from workers.policies import PolicyBook
from workers.probes import probes
from workers.screening import Screener
from workers.settings import Settings, WorkerSettings
from workers.slots import SlottedModels, one_thread_each
from workers.stopping import stop_on_signals, wait_for_stop

LONGEST_REST_S = 240.0
"""What a video may take beside decoding: reads, models, and every request failing as slowly as it can."""
GIVE_BACK_S = 1.0
"""Of the grace period, what giving back may take. A poll under way ends earlier than the rest (`poll_wait_s`)."""


def run_worker(settings: Settings) -> None:
    """Screen until SIGTERM or SIGINT. Raises FatalError when the set-up is at fault."""
    initial = active_policy(settings)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    metrics = Metrics(registry)
    with ExitStack() as stack:
        services = stack.enter_context(open_services(settings, database_wait_s=settings.database.wait_s))
        services.ledger.remember_policy(initial.name, initial.decision_hash, initial.document())
        book = PolicyBook(services.ledger, initial, on_change=lambda new: _show_goal(metrics, new))
        policy = book.active()
        _show_goal(metrics, policy)
        check_models(settings, policy)
        models = open_models(settings)
        decoders = stack.enter_context(open_decoders(settings.decoder))
        name = f"{socket.gethostname()}-{os.getpid()}"
        known = probes(
            services, book, decoders, models, artifacts_bucket=settings.storage.artifacts_bucket, worker=name
        )
        breakers = Breakers(known, metrics)
        stack.callback(breakers.close)
        flights = Flights(services.ledger, metrics, lease_s=settings.worker.lease_s)
        stack.callback(flights.close)
        one_thread_each()
        screener = Screener(
            services=services,
            policies=book,
            extractor=decoders,
            models=SlottedModels(models, threading.BoundedSemaphore(settings.worker.cpus)),
            metrics=metrics,
            worker=name,
            artifacts_bucket=settings.storage.artifacts_bucket,
            lease_s=settings.worker.lease_s,
            watch=breakers,
            has_vlm=settings.vlm.url is not None,
        )
        lanes = screening_lanes(services.queues, settings.worker)
        consumer = Consumer(
            lanes,
            services.queues.dead_letter,
            screener,
            flights,
            metrics,
            concurrency=settings.worker.concurrency,
            lease_s=settings.worker.lease_s,
            poll_wait_s=min(settings.worker.poll_wait_s, max(1, int(settings.worker.grace_s) - 2)),
            gate=breakers,
        )
        sampler = Sampler(consumer, lanes, metrics)
        stack.callback(sampler.close)
        progress = Progress(consumer, flights, longest_video_s=2 * settings.decoder.wall_s + LONGEST_REST_S)
        port = stack.enter_context(
            serving(
                settings.worker.metrics_host,
                settings.worker.metrics_port,
                registry,
                health=progress.troubles,
                readiness=breakers.troubles,
            )
        )
        get_logger().info("metrics_listening", port=port)
        get_logger().info(
            "worker_started",
            worker=name,
            policy=policy.name,
            decision_hash=policy.decision_hash,
            models=tuple(policy.decision.models),
        )
        consume_until_stopped(consumer, flights, grace_s=settings.worker.grace_s)


def _show_goal(metrics: Metrics, policy: Policy) -> None:
    metrics.latency_goal.set(policy.commercial.latency_goal_s)


def screening_lanes(queues: Queues, settings: WorkerSettings) -> list[LaneSpec]:
    """Uploads first, looked into far ahead; backfill gets what they leave, and its share at least."""
    return [
        LaneSpec(Lane.UPLOADS, queues.uploads, look_ahead=settings.look_ahead),
        LaneSpec(Lane.BACKFILL, queues.backfill, share=settings.backfill_share, look_ahead=2 * BATCH_MESSAGES),
    ]


def consume_until_stopped(consumer: Consumer, flights: Flights, *, grace_s: float) -> None:
    """Run `consumer` in a thread, so that signals reach a main thread that is free to act on them."""
    stopping = stop_on_signals()

    def consume() -> None:
        try:
            consumer.run()
        finally:
            stopping.set()

    thread = threading.Thread(target=consume, name="consumer", daemon=True)
    thread.start()
    wait_for_stop(stopping)
    end_s = time.monotonic() + max(0.0, grace_s - GIVE_BACK_S)
    get_logger().info("worker_draining", in_flight=len(flights))
    consumer.stop()
    thread.join(max(0.0, end_s - time.monotonic()))
    if thread.is_alive():
        consumer.wait_until_receiving_ended(GIVE_BACK_S / 2)  # else what is given back comes straight to our own poll
        get_logger().warning("worker_gives_back", in_flight=len(flights))
        flights.give_back()
        os._exit(0)  # threads that still decode would hold a normal exit up
    if consumer.set_up_fault is not None:
        raise consumer.set_up_fault
    get_logger().info("worker_stopped")
