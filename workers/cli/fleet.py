"""The processes of a fleet, and what feeds them: up, api, worker, backfill, reconcile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pipeline import policies
from pipeline.errors import Reason, UserError
from pipeline.media import ObjectRef
from pipeline.stores.objects import ObjectStore
from workers.analysis import active_policy
from workers.backfill import BackfillCounts, parse_s3_url, read_manifest, wait_until_settled
from workers.backfill import backfill as run_backfill
from workers.bootstrap import open_services
from workers.logs import configure_logs
from workers.policies import stored_active_policy
from workers.reconcile import ReconcileCounts
from workers.reconcile import reconcile as run_reconcile
from workers.settings import load_settings


@click.command()
@click.option("--detach", is_flag=True, help="Return once all is ready; `videosieve down` stops it.")
def up(detach: bool) -> None:
    """Run everything on this machine: S3, SQS, PostgreSQL, API and worker. Ctrl-C stops all, state is kept."""
    from workers.up import run_up, start_detached

    settings = load_settings()
    if detach:
        start_detached(settings)
        click.echo("ready; `videosieve down` stops it", err=True)
        return
    configure_logs(settings.log, service="up")
    run_up(settings, lambda line: click.echo(line, err=True))


@click.command()
def down() -> None:
    """Stop the `up` of this data folder and wait until it has stopped."""
    from workers.up import stop_running

    settings = load_settings()
    click.echo("stopped" if stop_running(settings.data_dir) else "nothing is running here", err=True)


@click.command()
def api() -> None:
    """Serve the upload API."""
    from workers.api.server import serve

    settings = load_settings()
    configure_logs(settings.log, service="api")
    serve(settings)


@click.command()
def worker() -> None:
    """Screen videos from the upload and the backfill lane until SIGTERM."""
    from workers.worker import run_worker

    settings = load_settings()
    configure_logs(settings.log, service="worker")
    run_worker(settings)


@click.command()
def judge() -> None:
    """Ask the VLM's engine about what screening left in doubt, from the escalation lane, until SIGTERM."""
    from workers.judge import run_judge

    settings = load_settings()
    configure_logs(settings.log, service="judge")
    run_judge(settings)


@click.command()
@click.argument("source")
@click.option("--policy", "policy_name", help="A shipped policy's name or a file.  [default: the active one]")
@click.option("--rate", type=click.FloatRange(0.1, 10_000), help="Most videos to enqueue a second.")
@click.option("--wait", is_flag=True, help="Stay until every one is decided, with a second progress bar.")
def backfill(source: str, policy_name: str | None, rate: float | None, wait: bool) -> None:
    """Enqueue the videos of SOURCE: s3://BUCKET/PREFIX, or a manifest file that names an object a line.

    What is decided under the policy, or on its way, is skipped; so an interrupted backfill is just run again.
    """
    settings = load_settings()
    named = policies.load(policy_name) if policy_name else None
    with open_services(settings) as services, _progress() as progress:
        policy = named or stored_active_policy(services.ledger, active_policy(settings))
        task = progress.add_task("enqueued", total=None)

        def show(counts: BackfillCounts) -> None:
            progress.update(task, completed=counts.seen, description=f"enqueued {counts.enqueued}")

        refs = _refs_of(source, services.objects)
        counts = run_backfill(services, policy, refs, rate_per_s=rate, progress=show)
        progress.update(task, total=counts.seen)
        click.echo(
            f"{counts.seen} seen, {counts.enqueued} enqueued, {counts.skipped} decided or on their way, "
            f"{counts.missing} not there",
            err=True,
        )
        if wait:
            task = progress.add_task("decided", total=counts.seen - counts.missing)
            wait_until_settled(
                services.ledger,
                policy.decision_hash,
                lambda done, all_: progress.update(task, completed=done, total=all_),
            )


@click.command()
@click.option("--prefix", default="", help="Only objects below this prefix of the originals bucket.")
@click.option(
    "--older-than",
    "older_than_s",
    type=click.FloatRange(1, 30 * 86400),
    default=3600.0,
    show_default=True,
    help="Seconds without a sign of life after which an object or a run counts as lost.",
)
@click.option("--dry-run", is_flag=True, help="Count only; enqueue and delete nothing.")
def reconcile(prefix: str, older_than_s: float, dry_run: bool) -> None:
    """Enqueue objects without a run and runs that stopped moving; delete artifacts that belong to no result."""
    settings = load_settings()
    with open_services(settings) as services, _progress() as progress:
        policy = stored_active_policy(services.ledger, active_policy(settings))
        task = progress.add_task("objects", total=None)

        def show(counts: ReconcileCounts) -> None:
            progress.update(task, completed=counts.objects)

        counts = run_reconcile(
            services,
            policy,
            bucket=settings.storage.originals_bucket,
            prefix=prefix,
            older_than_s=older_than_s,
            artifacts_bucket=settings.storage.artifacts_bucket,
            dry_run=dry_run,
            progress=show,
        )
    click.echo(
        f"{counts.objects} objects looked at, {counts.without_run} had no run, {counts.stale_runs} runs had stopped; "
        f"{counts.artifacts} artifacts looked at, {counts.orphans} belonged to no result"
        + (" (a dry run: nothing was changed)" if dry_run else ""),
        err=True,
    )


def _refs_of(source: str, objects: ObjectStore) -> Iterator[ObjectRef]:
    if source.startswith("s3://"):
        yield from objects.list(*parse_s3_url(source))
        return
    try:
        with Path(source).open(encoding="utf-8") as lines:
            yield from read_manifest(lines, origin=source)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(Reason.BAD_INPUT, f"manifest {source} cannot be read: {error}") from None


@contextmanager
def _progress() -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress
