"""`videosieve up`: everything on one machine. Embedded S3, SQS and PostgreSQL that keep their state, API and worker.

The services run under watchdogs in sessions of their own: Ctrl-C reaches only this process, which stops them in
order, and if this process is killed they stop by themselves.
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.cascade.policy import Policy
from pipeline.errors import FatalError, Reason
from pipeline.models.registry import Registry, WeightsStatus
from pipeline.stores import migrate
from pipeline.stores.aws import connect, wire
from workers.analysis import active_policy, open_registry
from workers.bootstrap import LocalServices, wiring
from workers.local import AWS_KEY, AWS_SECRET, EmbeddedAws, EmbeddedPostgres
from workers.settings import Settings
from workers.stopping import stop_on_signals, wait_for_stop
from workers.watched import WatchedProcess

Say = Callable[[str], None]

_LOOK_S = 0.2
_RESTART_FIRST_S = 0.5
_RESTART_MAX_S = 30.0
_STEADY_S = 30.0
_STOP_S = 60.0


@dataclass(slots=True)
class _Supervised:
    """A process of ours that is started again when it ends."""

    name: str
    log: Path
    environment: Mapping[str, str]
    process: WatchedProcess = field(init=False)
    started_s: float = field(init=False)
    wait_s: float = _RESTART_FIRST_S

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.started_s = time.monotonic()
        self.process = WatchedProcess(
            [sys.executable, "-m", "workers.cli", self.name],
            stop_signal=signal.SIGTERM,
            log=self.log,
            env=self.environment,
            cwd=Path.cwd(),
        )

    def look_after(self, stopping: threading.Event, say: Say) -> None:
        """Start the process again if it ended, later each time it ends at once."""
        if self.process.is_running:
            return
        if time.monotonic() - self.started_s > _STEADY_S:
            self.wait_s = _RESTART_FIRST_S
        say(f"the {self.name} ended ({last_line(self.log)}); starting it again in {self.wait_s:.1f} s")
        if not stopping.wait(self.wait_s):
            self.wait_s = min(_RESTART_MAX_S, self.wait_s * 2)
            self.process.stop()
            self.start()


@contextmanager
def local_services(settings: Settings, say: Say) -> Iterator[LocalServices]:
    """Run everything for the length of the `with` block. API and worker are up when it begins.

    Raises UserError when a port or the data folder is taken, FatalError when something does not start.
    """
    data_dir = settings.data_dir.expanduser().absolute()
    policy = active_policy(settings)
    pull_missing(open_registry(settings), policy, say)
    with ExitStack() as stack:
        stack.callback(LocalServices.remove, data_dir)  # last of all: `stop_running` waits for it
        postgres_url = stack.enter_context(EmbeddedPostgres(data_dir)).url
        migrate.upgrade(postgres_url)
        aws = stack.enter_context(EmbeddedAws(data_dir, settings.local.aws_port))
        clients = connect(
            endpoint_url=aws.endpoint_url,
            region=settings.aws.region,
            access_key_id=AWS_KEY,
            secret_access_key=AWS_SECRET,
        )
        stack.callback(clients.close)
        wire(clients, wiring(settings), region=settings.aws.region)
        services = LocalServices(
            pid=os.getpid(),
            endpoint_url=aws.endpoint_url,
            access_key_id=AWS_KEY,
            secret_access_key=AWS_SECRET,
            database_url=postgres_url,
            api_url=f"http://{settings.api.host}:{settings.api.port}",
        )
        services.write(data_dir)
        stopping = threading.Event()
        environment = {**os.environ, "VIDEOSIEVE_DATA_DIR": str(data_dir)}
        children = []
        for name in ("api", "worker"):
            children.append(_Supervised(name, data_dir / f"{name}.log", environment))
            stack.callback(children[-1].process.stop)
        supervisor = threading.Thread(target=_supervise, args=(children, stopping, say), daemon=True)
        _wait_for_api(services.api_url, children)
        supervisor.start()
        stack.callback(supervisor.join)
        stack.callback(stopping.set)
        yield services


def _supervise(children: list[_Supervised], stopping: threading.Event, say: Say) -> None:
    while not stopping.wait(_LOOK_S):
        for child in children:
            child.look_after(stopping, say)
    for child in reversed(children):
        child.process.stop()


def run_up(settings: Settings, say: Say) -> None:
    """Run until SIGINT or SIGTERM, then stop everything, state kept."""
    stopping = stop_on_signals()
    with local_services(settings, say) as services:
        say(f"API: {services.api_url}   S3 and SQS: {services.endpoint_url}   state: {settings.data_dir}")
        say("make an API key with `videosieve tenants add NAME`; Ctrl-C stops everything")
        wait_for_stop(stopping)
        say("stopping")


def stop_running(data_dir: Path) -> bool:
    """Tell the `up` of `data_dir` to stop and wait until it has; False where none is running."""
    running = LocalServices.running(data_dir)
    if running is None:
        return False
    os.kill(running.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _STOP_S
    while LocalServices.running(data_dir) is not None:
        if time.monotonic() > deadline_s:
            raise FatalError(Reason.INTERNAL_ERROR, f"process {running.pid} does not stop; see its output")
        time.sleep(_LOOK_S)
    return True


def pull_missing(registry: Registry, policy: Policy, say: Say) -> None:
    """Fetch the weights that `policy` needs and that are not there, saying what they are licensed under."""
    for name in policy.decision.models:
        if registry.verify(name) is WeightsStatus.MISSING:
            say(f"fetching {name} ({registry.spec(name).licence})")
            registry.pull(name)
        registry.path(name)


def _wait_for_api(url: str, children: list[_Supervised]) -> None:
    host, _, port = url.removeprefix("http://").partition(":")

    def answers() -> bool:
        connection = http.client.HTTPConnection(host, int(port), timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    children[0].process.wait_until(answers, "the API")
    if not children[1].process.is_running:
        raise FatalError(Reason.INTERNAL_ERROR, f"the worker does not start: {last_line(children[1].log)}")


def last_line(log: Path) -> str:
    """The last line of a log file, for a message about the process that wrote it."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    return lines[-1][:300] if lines else "its log is empty"
