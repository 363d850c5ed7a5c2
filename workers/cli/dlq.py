"""`videosieve dlq`: what was set aside, why, and what to do with it."""

from __future__ import annotations

import getpass
import json
from typing import Any

import click
from rich.table import Table

from pipeline.errors import Reason, UserError
from pipeline.stores.queue import Queues
from workers.bootstrap import open_clients, open_queues, open_services
from workers.cli.console import shown, stdout
from workers.dlq import DeadLetter, Filter, held
from workers.dlq import discard as discard_letters
from workers.dlq import redrive as redrive_letters
from workers.settings import load_settings

_IDS = click.argument("message_ids", nargs=-1)
_REASON = click.option("--reason", help="Only what was set aside for this reason.")
_CONTAINS = click.option("--contains", help="Only videos with this in their address.")
_WHO = click.option("--who", default=getpass.getuser, show_default="your login", help="Who does it; kept in the audit.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
_ALL = click.option("--all", "everything", is_flag=True, help="Everything, where no filter is given.")


@click.group()
def dlq() -> None:
    """The dead-letter queue: messages that cannot be handled, with their reasons."""


@dlq.command("list")
@_REASON
@_CONTAINS
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
def list_letters(reason: str | None, contains: str | None, limit: int, as_json: bool) -> None:
    """List what lies there, the oldest first."""
    with held(_queues().dead_letter, Filter(reason=reason, contains=contains), limit=limit) as letters:
        if as_json:
            for letter in letters:
                click.echo(json.dumps(_plain(letter)))
            return
        table = Table("message", "since", "reason", "source", "video", "detail")
        for letter in letters:
            since = f"{letter.message.sent_at:%Y-%m-%d %H:%M}"
            table.add_row(letter.id, since, letter.reason, letter.source, shown(letter.video), shown(letter.detail))
        stdout().print(table)


@dlq.command()
@click.argument("message_id")
def show(message_id: str) -> None:
    """Show one message whole."""
    with held(_queues().dead_letter, Filter(ids=(message_id,))) as letters:
        if not letters:
            raise UserError(Reason.BAD_INPUT, f"no message {message_id} lies in the dead-letter queue")
        click.echo(json.dumps(_plain(letters[0]) | {"body": letters[0].message.body}, indent=2))


@dlq.command()
@_IDS
@_REASON
@_CONTAINS
@_ALL
@_DRY_RUN
@_WHO
def redrive(
    message_ids: tuple[str, ...], reason: str | None, contains: str | None, everything: bool, dry_run: bool, who: str
) -> None:
    """Send messages to the lane that they came from, their failed runs given a fresh start."""
    wanted = _chosen(message_ids, reason, contains, everything)
    if dry_run:
        _show_what_would_be_done(wanted)
        return
    with open_services(load_settings()) as services:
        count = redrive_letters(services.queues, services.ledger, wanted, who=who, progress=_say)
    click.echo(f"{count} sent again", err=True)


@dlq.command()
@_IDS
@_REASON
@_CONTAINS
@_ALL
@_DRY_RUN
@_WHO
@click.option("--why", required=True, help="Why nobody needs them; kept in the audit.")
def discard(
    message_ids: tuple[str, ...],
    reason: str | None,
    contains: str | None,
    everything: bool,
    dry_run: bool,
    who: str,
    why: str,
) -> None:
    """Delete messages for good."""
    wanted = _chosen(message_ids, reason, contains, everything)
    if dry_run:
        _show_what_would_be_done(wanted)
        return
    with open_services(load_settings()) as services:
        count = discard_letters(services.queues, services.ledger, wanted, who=who, why=why, progress=_say)
    click.echo(f"{count} deleted", err=True)


def _chosen(ids: tuple[str, ...], reason: str | None, contains: str | None, everything: bool) -> Filter:
    if not (ids or reason or contains or everything):
        raise UserError(Reason.BAD_INPUT, "say which: message ids, --reason, --contains, or --all")
    return Filter(reason=reason, ids=ids, contains=contains)


def _show_what_would_be_done(wanted: Filter) -> None:
    with held(_queues().dead_letter, wanted) as letters:
        for letter in letters:
            _say(letter)
        click.echo(f"{len(letters)} would be", err=True)


def _queues() -> Queues:
    settings = load_settings()
    return open_queues(settings, open_clients(settings))


def _say(letter: DeadLetter) -> None:
    click.echo(f"{letter.id}  {letter.reason}  {letter.video}")


def _plain(letter: DeadLetter) -> dict[str, Any]:
    return {
        "message_id": letter.id,
        "since": letter.message.sent_at.isoformat(),
        "reason": letter.reason,
        "detail": letter.detail,
        "source": letter.source,
        "run_id": str(letter.run_id) if letter.run_id else None,
        "video": letter.video,
    }
