"""`videosieve models`: the weights that policies name."""

from __future__ import annotations

import click
from rich.table import Table

from pipeline.models.registry import Registry, WeightsStatus
from workers.analysis import active_policy, open_registry
from workers.cli.console import stdout
from workers.settings import load_settings

_NAMES = click.argument("names", nargs=-1)


@click.group()
def models() -> None:
    """Weights of models: pinned by SHA-256, licences shown."""


@models.command("list")
def list_models() -> None:
    """List all known models, their licences and whether their weights are here."""
    registry = open_registry(load_settings())
    table = Table("model", "task", "licence", "size", "SHA-256", "weights")
    for spec in registry.specs():
        status = registry.verify(spec.name)
        table.add_row(
            spec.name, spec.task, spec.licence, f"{spec.size_bytes / 1e6:.1f} MB", spec.sha256[:12], status.value
        )
    stdout().print(table)


@models.command()
@_NAMES
@click.option("--all", "everything", is_flag=True, help="Every model in the catalogue.")
def pull(names: tuple[str, ...], everything: bool) -> None:
    """Fetch weights of NAMES.  [default: those of the active policy]"""
    settings = load_settings()
    registry = open_registry(settings)
    for name in _chosen(registry, names, everything) or active_policy(settings).decision.models:
        path = registry.pull(name, progress=lambda line: click.echo(line, err=True))
        click.echo(f"{name}: {path}")


@models.command()
@_NAMES
def pin(names: tuple[str, ...]) -> None:
    """Print what pins NAMES in a policy, under decision.models: their weights, and how they are read.

    [default: all known models]
    """
    registry = open_registry(load_settings())
    for name in _chosen(registry, names, everything=not names):
        spec = registry.spec(name)
        click.echo(f"{name}: {{weights: {spec.sha256}, reading: {spec.reading_sha256}}}")


@models.command()
@_NAMES
def verify(names: tuple[str, ...]) -> None:
    """Compare weights with their SHA-256.  [default: of all models]

    Exit code 1 when any is altered, or one of NAMES is missing.
    """
    registry = open_registry(load_settings())
    wrong = False
    for name in _chosen(registry, names, everything=not names):
        status = registry.verify(name)
        wrong |= status is WeightsStatus.ALTERED or (bool(names) and status is not WeightsStatus.OK)
        click.echo(f"{name}: {status.value}")
    if wrong:
        raise click.exceptions.Exit(1)


def _chosen(registry: Registry, names: tuple[str, ...], everything: bool) -> list[str]:
    return [spec.name for spec in registry.specs()] if everything else [registry.spec(name).name for name in names]
