"""`videosieve review` and `videosieve runs`: what waits for a person, and what the ledger knows."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from typing import Any
from uuid import UUID

import click
from rich.table import Table

from pipeline.errors import Reason, UserError
from pipeline.runs import ReviewDetail
from pipeline.verdict import Answer, RunState
from workers.bootstrap import open_ledger
from workers.cli.console import shown, stdout
from workers.settings import load_settings

_RUN = click.argument("run_id", type=click.UUID)
_QUESTION = click.argument("question")
_LIMIT = click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")


@click.group()
def review() -> None:
    """Questions that wait for a person, and people's answers."""


@review.command("list")
@_LIMIT
@_JSON
def list_reviews(limit: int, as_json: bool) -> None:
    """List what waits, the oldest first."""
    with open_ledger(load_settings()) as ledger:
        items = ledger.reviews(limit=limit)
    if as_json:
        for item in items:
            click.echo(json.dumps(asdict(item), default=str))
        return
    table = Table("run", "question", "score", "reason", "since", "video")
    for item in items:
        table.add_row(
            str(item.run_id),
            item.question,
            f"{item.score:.2f}",
            item.reason,
            f"{item.since:%Y-%m-%d %H:%M}",
            shown(item.video),
        )
    stdout().print(table)


@review.command()
@_RUN
@_QUESTION
def show(run_id: UUID, question: str) -> None:
    """Show one question: the machine's answer, people's answers, where the pictures are."""
    with open_ledger(load_settings()) as ledger:
        detail = ledger.review(run_id, question)
    if detail is None:
        raise UserError(
            Reason.BAD_INPUT, f"run {run_id} has no question '{question}'; see `videosieve runs show {run_id}`"
        )
    _print(detail)


@review.command()
@_RUN
@_QUESTION
@click.argument("answer", type=click.Choice([Answer.POSITIVE.value, Answer.NEGATIVE.value]))
@click.option("--why", required=True, help="What the answer rests on; kept for good.")
@click.option("--who", default=getpass.getuser, show_default="your login", help="Who answers; kept for good.")
def answer(run_id: UUID, question: str, answer: str, why: str, who: str) -> None:
    """Answer QUESTION of a run, or override the answer it has; the history stays."""
    with open_ledger(load_settings()) as ledger:
        _print(ledger.answer(run_id, question, answer=Answer(answer), who=who, why=why))


@click.group()
def runs() -> None:
    """What the ledger knows about videos."""


@runs.command("list")
@click.option("--state", type=click.Choice([state.value for state in RunState]))
@_LIMIT
@_JSON
def list_runs(state: str | None, limit: int, as_json: bool) -> None:
    """List runs, the newest first."""
    with open_ledger(load_settings()) as ledger:
        found = ledger.runs(state=RunState(state) if state else None, limit=limit)
    if as_json:
        for run in found:
            click.echo(json.dumps(asdict(run), default=str))
        return
    table = Table("run", "state", "reason", "attempts", "video")
    for run in found:
        video = f"s3://{run.bucket}/{run.key}"
        table.add_row(str(run.run_id), run.state.value, run.reason or "", str(run.attempts), shown(video))
    stdout().print(table)


@runs.command("show")
@_RUN
def show_run(run_id: UUID) -> None:
    """Show all that is known about one run, as JSON."""
    with open_ledger(load_settings()) as ledger:
        run = ledger.run(run_id)
    if run is None:
        raise UserError(Reason.BAD_INPUT, f"there is no run {run_id}; `videosieve runs list` lists them")
    click.echo(json.dumps(asdict(run), default=str, indent=2))


def _print(detail: ReviewDetail) -> None:
    shown: dict[str, Any] = asdict(detail)
    click.echo(json.dumps(shown, default=str, indent=2))
