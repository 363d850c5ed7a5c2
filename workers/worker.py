"""The screening worker's process: builds everything, consumes until it is told to stop, drains."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server

from pipeline.errors import Reason, UserError
from pipeline.runs import Lane
from pipeline.stores.queue import BATCH_MESSAGES, Queues
from workers.analysis import active_policy, load_all_models, open_decoders, open_models, policy_document
from workers.bootstrap import open_services
from workers.consumer import Consumer, LaneSpec
from workers.flight import Flights
from workers.logs import get_logger
from workers.metrics import Metrics
from workers.screening import Screener
from workers.settings import Settings, WorkerSettings
from workers.stopping import stop_on_signals, wait_for_stop

LONGEST_POLL_S = 25.0
"""SQS answers a long poll within 20 s. A message given back before would come straight to the poll under way."""


def run_worker(settings: Settings) -> None:
    """Screen until SIGTERM or SIGINT. Raises FatalError when the set-up is at fault."""
    policy = active_policy(settings)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    metrics = Metrics(registry)
    metrics.latency_goal.set(policy.commercial.latency_goal_s)
    with ExitStack() as stack:
        models = open_models(settings)
        load_all_models(policy, models)
        services = stack.enter_context(open_services(settings))
        services.ledger.remember_policy(policy.name, policy.decision_hash, policy_document(policy))
        decoders = stack.enter_context(open_decoders(settings.decoder))
        stack.enter_context(_metrics_server(settings.worker, registry))
        name = f"{socket.gethostname()}-{os.getpid()}"
        flights = Flights(services.ledger, metrics, lease_s=settings.worker.lease_s)
        stack.callback(flights.close)
        screener = Screener(
            services=services,
            policy=policy,
            extractor=decoders,
            models=models,
            metrics=metrics,
            worker=name,
            artifacts_bucket=settings.storage.artifacts_bucket,
            lease_s=settings.worker.lease_s,
        )
        consumer = Consumer(
            screening_lanes(services.queues, settings.worker),
            services.queues.dead_letter,
            screener,
            flights,
            metrics,
            concurrency=settings.worker.concurrency,
            lease_s=settings.worker.lease_s,
            poll_wait_s=settings.worker.poll_wait_s,
        )
        get_logger().info(
            "worker_started",
            worker=name,
            policy=policy.name,
            decision_hash=policy.decision_hash,
            models=models.loaded(),
        )
        _consume(consumer, flights, grace_s=settings.worker.grace_s)


def screening_lanes(queues: Queues, settings: WorkerSettings) -> list[LaneSpec]:
    """Uploads first, looked into far ahead; backfill gets what they leave, and its share at least."""
    return [
        LaneSpec(Lane.UPLOADS, queues.uploads, look_ahead=settings.look_ahead),
        LaneSpec(Lane.BACKFILL, queues.backfill, share=settings.backfill_share, look_ahead=2 * BATCH_MESSAGES),
    ]


def _consume(consumer: Consumer, flights: Flights, *, grace_s: float) -> None:
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
    get_logger().info("worker_draining", in_flight=len(flights))
    consumer.stop()
    consumer.wait_until_receiving_ended(LONGEST_POLL_S)
    thread.join(grace_s)
    if thread.is_alive():
        get_logger().warning("worker_gives_back", in_flight=len(flights))
        flights.give_back()
        os._exit(0)  # threads that still decode would hold a normal exit up
    if consumer.set_up_fault is not None:
        raise consumer.set_up_fault
    get_logger().info("worker_stopped")


@contextmanager
def _metrics_server(settings: WorkerSettings, registry: CollectorRegistry) -> Iterator[None]:
    try:
        server, thread = start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        raise UserError(
            Reason.BAD_SETTING,
            f"/metrics cannot listen on {settings.metrics_host}:{settings.metrics_port} ({error.strerror}): "
            "set VIDEOSIEVE_WORKER__METRICS_PORT to a free port, or to 0 for any",
        ) from None
    try:
        get_logger().info("metrics_listening", port=server.server_port)
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
