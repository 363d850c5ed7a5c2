"""Setting up and looking after: config, db, doctor, tenants."""

from __future__ import annotations

import json

import click
from rich.table import Table
from rich.text import Text

from pipeline.stores import migrate
from pipeline.stores.aws import wire as wire_stack
from workers.bootstrap import database_url, open_clients, open_ledger, wiring
from workers.cli.console import stdout
from workers.doctor import Finding, diagnose
from workers.settings import effective, load_settings, variable, walk


@click.command()
@click.option("--describe", is_flag=True, help="List every setting with its variable and meaning instead.")
def config(describe: bool) -> None:
    """Print the settings in force, secrets masked."""
    if not describe:
        click.echo(json.dumps(effective(load_settings()), indent=2))
        return
    table = Table("variable", "meaning", box=None)
    for path, meaning in walk():
        table.add_row(variable(path), meaning)
    stdout().print(table)


@click.group()
def db() -> None:
    """The ledger's database."""


@db.command()
def upgrade() -> None:
    """Bring the database's schema up to date; safe to run at any time."""
    with database_url(load_settings()) as url:
        migrate.upgrade(url)
    click.echo("the schema is up to date", err=True)


@click.command()
def wire() -> None:
    """Create buckets, queues and the event notification on the S3 and SQS that are set; safe to run again.

    For stacks without infrastructure code of their own, such as docker-compose.yml.
    """
    settings = load_settings()
    clients = open_clients(settings)
    try:
        wire_stack(clients, wiring(settings), region=settings.aws.region)
    finally:
        clients.close()
    click.echo("buckets, queues and notification are in place", err=True)


@click.command()
def doctor() -> None:
    """Say what is missing on this machine, and how to get it. Exit code 1 when something needed is."""
    findings = diagnose(load_settings())
    console = stdout()
    marks = {
        Finding.OK: Text("ok", "green"),
        Finding.NOTE: Text("note", "yellow"),
        Finding.MISSING: Text("missing", "red"),
    }
    table = Table(box=None, show_header=False)
    for finding in findings:
        table.add_row(marks[finding.level], Text(finding.subject), Text(finding.detail))
    console.print(table)
    if any(finding.level == Finding.MISSING for finding in findings):
        raise click.exceptions.Exit(1)


@click.group()
def tenants() -> None:
    """Tenants and their API keys."""


@tenants.command()
@click.argument("name")
def add(name: str) -> None:
    """Add tenant NAME and print its first API key; the key cannot be shown again."""
    with open_ledger(load_settings()) as ledger:
        _, api_key = ledger.add_tenant(name)
    click.echo(api_key)


@tenants.command("add-key")
@click.argument("name")
def add_key(name: str) -> None:
    """Print a further API key for tenant NAME."""
    with open_ledger(load_settings()) as ledger:
        click.echo(ledger.add_key(name))


@tenants.command("revoke-key")
@click.argument("public_id")
def revoke_key(public_id: str) -> None:
    """Make the key vs_PUBLIC_ID_… useless from now on."""
    with open_ledger(load_settings()) as ledger:
        ledger.revoke_key(public_id)


@tenants.command("list")
def list_tenants() -> None:
    """List the tenants."""
    with open_ledger(load_settings()) as ledger:
        for tenant in ledger.tenants():
            click.echo(f"{tenant.id}  {tenant.name}")
