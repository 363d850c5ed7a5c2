"""`videosieve policy`: check, show, compare and activate policies, and who activated which one and why."""

from __future__ import annotations

import getpass
import json
import re
from dataclasses import asdict
from pathlib import Path

import click
from pydantic import ValidationError
from rich.table import Table

from pipeline import policies
from pipeline.cascade.difference import differences
from pipeline.cascade.policy import Policy
from pipeline.errors import Reason, UserError
from pipeline.stores.ledger import Ledger
from workers.bootstrap import open_ledger
from workers.cli.console import shown, stdout
from workers.settings import load_settings

ACTIVE = "active"
_HASH = re.compile(r"[0-9a-f]{6,64}")
_WHICH = "a shipped policy's name, a file, `active`, or the first characters of a version's hash"


@click.group()
def policy() -> None:
    """Policy documents: what is asked, with which thresholds, at which prices."""


@policy.command("list")
def list_policies() -> None:
    """List the shipped policies."""
    for name in policies.shipped():
        found = policies.load(name)
        questions = "; ".join(question.text for question in found.decision.questions.values())
        click.echo(f"{name}  {found.decision_hash[:12]}  {questions}")


@policy.command()
@click.argument("name_or_path")
def validate(name_or_path: str) -> None:
    """Check a policy; say which line, which field and what to do where it is wrong."""
    found = policies.load(name_or_path)
    click.echo(f"{found.name}: valid, decision hash {found.decision_hash}")


@policy.command()
@click.argument("which")
def show(which: str) -> None:
    """Print a policy with all defaults filled in.

    WHICH is a shipped policy's name, a file, `active`, or the first characters of a version's hash.
    """
    click.echo(json.dumps(_find(which).document(), indent=2))


@policy.command()
@click.argument("before")
@click.argument("after")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
def diff(before: str, after: str, as_json: bool) -> None:
    """Say what differs between two policies, and whether that makes anything undecided.

    BEFORE and AFTER are each a shipped policy's name, a file, `active`, or the first characters of a version's hash.
    """
    old, new = _find(before), _find(after)
    changes = differences(old, new)
    for change in changes:
        if as_json:
            click.echo(json.dumps(asdict(change) | {"is_decisive": change.is_decisive}))
        else:
            click.echo(f"{shown(change.field)}: {_value(change.before)} → {_value(change.after)}")
    if not changes:
        click.echo("nothing differs", err=True)
    elif old.decision_hash == new.decision_hash:
        click.echo("the decision hash stays: nothing becomes undecided", err=True)
    else:
        click.echo(
            f"the decision hash changes from {old.decision_hash[:12]} to {new.decision_hash[:12]}: what was decided "
            "stays as it is, a backfill under the new policy decides again",
            err=True,
        )


@policy.command()
@click.argument("which")
@click.option("--why", required=True, help="Why, for the history.")
@click.option("--who", default=getpass.getuser, show_default="the user's name", help="Who activates it.")
@click.option("--unchecked", is_flag=True, help="Do not try this machine's models with it first.")
def activate(which: str, why: str, who: str, unchecked: bool) -> None:
    """Make a policy the one that judges uploads from now on; workers follow within seconds.

    WHICH is a shipped policy's name, a file, or the first characters of a version's hash: activating an older version
    rolls back. Its models are tried first, as a worker that cannot load them stops.
    """
    from workers.analysis import check_models

    settings = load_settings()
    if not (who.strip() and why.strip()):
        raise UserError(Reason.BAD_INPUT, "--who and --why cannot be empty: the history needs them")
    with open_ledger(settings) as ledger:
        found = _find(which, ledger)
        if not unchecked:
            check_models(settings, found)
        done = ledger.activate_policy(found.name, found.decision_hash, found.document(), who=who, why=why)
    click.echo(f"{done.policy}: version {done.document_hash[:12]} is active, decision hash {done.decision_hash[:12]}")


@policy.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
def history(limit: int, as_json: bool) -> None:
    """List who activated which version, when and why, the newest first."""
    with open_ledger(load_settings()) as ledger:
        found = ledger.activations(limit=limit)
    if as_json:
        for activation in found:
            click.echo(json.dumps(asdict(activation), default=str))
        return
    table = Table("at", "policy", "version", "decision hash", "who", "why")
    for line in found:
        table.add_row(
            f"{line.at:%Y-%m-%d %H:%M:%S}",
            line.policy,
            line.document_hash[:12],
            line.decision_hash[:12],
            shown(line.who),
            shown(line.why),
        )
    stdout().print(table)


def _find(which: str, ledger: Ledger | None = None) -> Policy:
    """A policy by name, path, hash or as the active one; the ledger is opened where only it can know."""
    if which != ACTIVE and (which in policies.shipped() or Path(which).exists() or not _HASH.fullmatch(which)):
        return policies.load(which)
    if ledger is None:
        with open_ledger(load_settings()) as opened:
            return _find(which, opened)
    if which == ACTIVE:
        active = ledger.active_policy()
        return policies.load(load_settings().policy) if active is None else _read(active[1], which)
    document = ledger.policy_version(which)
    if document is None:
        raise UserError(Reason.BAD_INPUT, f"no version starts with '{which}'; give {_WHICH}")
    return _read(document, which)


def _read(document: dict[str, object], which: str) -> Policy:
    try:
        return Policy.model_validate(document)
    except ValidationError as error:
        raise UserError(
            Reason.BAD_POLICY, f"version '{which}' is not readable by this program: {error.error_count()} faults"
        ) from None


def _value(value: object) -> str:
    return "(not set)" if value is None else json.dumps(value, ensure_ascii=True)
