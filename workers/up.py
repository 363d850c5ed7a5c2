"""`videosieve up`: everything on one machine. Embedded S3, SQS and PostgreSQL that keep their state, API and worker.

The services run under watchdogs in sessions of their own: Ctrl-C reaches only this process, which stops them in
order, and if this process is killed they stop by themselves.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.cascade.policy import Policy
from pipeline.errors import FatalError, Reason, UserError
from pipeline.models.registry import Registry, WeightsStatus
from pipeline.stores import migrate
from pipeline.stores.aws import connect, wire
from workers.analysis import active_policy, open_registry
from workers.bootstrap import UP_LOCK, LocalServices, wiring
from workers.local.aws import AWS_KEY, AWS_SECRET, EmbeddedAws
from workers.local.ports import free_port, require_free
from workers.local.postgres import EmbeddedPostgres
from workers.local.watched import FolderInUseError, WatchedProcess, disown_folder, own_folder
from workers.settings import Settings
from workers.stopping import stop_on_signals, wait_for_stop

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
    """Run everything for the length of the `with` block; all of it is ready when it begins.

    Raises UserError when a port or the data folder is taken or services are set that this would run beside, FatalError
    when something does not start.
    """
    data_dir = settings.data_dir.absolute()
    _refuse_foreign_services(settings)
    policy = active_policy(settings)
    pull_missing(open_registry(settings), policy, say)
    with ExitStack() as stack:
        _own(data_dir, stack)
        api_port = _checked_ports(settings)
        postgres_url = stack.enter_context(EmbeddedPostgres(data_dir)).url
        migrate.upgrade(postgres_url)
        aws = stack.enter_context(EmbeddedAws(data_dir, settings.local.aws_port or free_port()))
        _wire(settings, aws.endpoint_url)
        services = LocalServices(
            pid=os.getpid(),
            endpoint_url=aws.endpoint_url,
            access_key_id=AWS_KEY,
            secret_access_key=AWS_SECRET,
            database_url=postgres_url,
            api_url=f"http://{_reachable(settings.api.host)}:{api_port}",
        )
        environment = _environment(services, data_dir, api_port)
        children: list[_Supervised] = []
        for name in processes(settings, policy):
            children.append(_Supervised(name, data_dir / f"{name}.log", environment))
            stack.callback(children[-1].process.stop)
        _wait_until_ready(services.api_url, children)
        services.write(data_dir)
        stopping = threading.Event()
        supervisor = threading.Thread(target=_supervise, args=(children, stopping, say), daemon=True)
        supervisor.start()
        stack.callback(supervisor.join)
        stack.callback(stopping.set)
        yield services


def processes(settings: Settings, policy: Policy) -> tuple[str, ...]:
    """What is run: a judging worker only where there is an engine for it, and a policy that asks it."""
    has_vlm = settings.vlm.url is not None and policy.decision.vlm is not None
    return ("api", "worker", "judge") if has_vlm else ("api", "worker")


def _own(data_dir: Path, stack: ExitStack) -> None:
    """Become the one `up` of the data folder; what a killed one left behind is forgotten."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            Reason.BAD_SETTING, f"data folder {data_dir}: {error.strerror}; set VIDEOSIEVE_DATA_DIR"
        ) from None
    try:
        lock = own_folder(data_dir / UP_LOCK, data_dir)
    except FolderInUseError:
        raise UserError(
            Reason.BAD_SETTING, f"another `videosieve up` runs on {data_dir}; `videosieve down` stops it"
        ) from None
    stack.callback(disown_folder, lock)
    LocalServices.remove(data_dir)
    stack.callback(LocalServices.remove, data_dir)


def _refuse_foreign_services(settings: Settings) -> None:
    for name, value in (
        ("VIDEOSIEVE_DATABASE__URL", settings.database.url),
        ("VIDEOSIEVE_AWS__ENDPOINT_URL", settings.aws.endpoint_url),
    ):
        if value is not None:
            raise UserError(
                Reason.BAD_SETTING,
                f"`up` runs services of its own, but {name} is set: unset it, or run `api` and `worker`",
            )


def _checked_ports(settings: Settings) -> int:
    """The API's port. UserError where one is taken: the answers of whoever has it would be taken for ours."""
    if settings.api.port:
        require_free(settings.api.port, "VIDEOSIEVE_API__PORT")
    if settings.worker.metrics_port:
        require_free(settings.worker.metrics_port, "VIDEOSIEVE_WORKER__METRICS_PORT")
    if settings.vlm.url is not None and settings.vlm.metrics_port:
        require_free(settings.vlm.metrics_port, "VIDEOSIEVE_VLM__METRICS_PORT")
    return settings.api.port or free_port()


def _wire(settings: Settings, endpoint_url: str) -> None:
    clients = connect(
        endpoint_url=endpoint_url,
        region=settings.aws.region,
        access_key_id=AWS_KEY,
        secret_access_key=AWS_SECRET,
    )
    try:
        wire(clients, wiring(settings), region=settings.aws.region)
    finally:
        clients.close()


def _environment(services: LocalServices, data_dir: Path, api_port: int) -> dict[str, str]:
    """Where API and worker find everything."""
    return {
        **os.environ,
        "VIDEOSIEVE_DATA_DIR": str(data_dir),
        "VIDEOSIEVE_DATABASE__URL": services.database_url,
        "VIDEOSIEVE_AWS__ENDPOINT_URL": services.endpoint_url,
        "VIDEOSIEVE_AWS__ACCESS_KEY_ID": services.access_key_id,
        "VIDEOSIEVE_AWS__SECRET_ACCESS_KEY": services.secret_access_key,
        "VIDEOSIEVE_API__PORT": str(api_port),
    }


def _reachable(host: str) -> str:
    """`host` as this machine reaches it in a URL."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - an address that is compared with
    host = loopback.get(host, host)
    return f"[{host}]" if ":" in host else host


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


def _wait_until_ready(api_url: str, children: list[_Supervised]) -> None:
    api, *workers = children
    parts = urlsplit(api_url)

    def answers() -> bool:
        for worker in workers:
            if not worker.process.is_running:
                raise FatalError(Reason.INTERNAL_ERROR, f"the {worker.name} does not start: {last_line(worker.log)}")
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    api.process.wait_until(answers, "the API")


def start_detached(settings: Settings) -> None:
    """Start an `up` in the background and return once it is ready. Raises FatalError with what it said if it ends."""
    data_dir = settings.data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "up.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "up"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while (running := LocalServices.running(data_dir)) is None or running.pid != process.pid:
        if process.poll() is not None:
            raise FatalError(
                Reason.INTERNAL_ERROR, f"it did not start: {last_line(log)}", exit_code=process.returncode or 1
            )
        time.sleep(_LOOK_S)


def last_line(log: Path) -> str:
    """The last line of a log file, for a message about the process that wrote it."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    return lines[-1][:300] if lines else "its log is empty"
