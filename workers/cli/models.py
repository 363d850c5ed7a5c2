"""`videosieve models`: the weights that policies name."""

from __future__ import annotations

import re
from pathlib import Path

import click
from rich.table import Table

from pipeline.errors import Reason, UserError
from pipeline.models.export import Exported
from pipeline.models.registry import Registry, WeightsStatus
from workers.analysis import active_policy, open_registry
from workers.cli.console import stdout
from workers.settings import load_settings

_NAMES = click.argument("names", nargs=-1)
_EXPORTED_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,58}")
"""What a policy can name, also with `-fp16` or `-int8` at its end."""


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


@models.command()
@click.argument("model")
@click.option("--name", help="Its name in catalogue and policies.  [default: that of MODEL, in small letters]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("models"), show_default=True)
@click.option("--input-px", type=click.IntRange(32, 4096), default=640, show_default=True, help="Side of the input.")
@click.option("--label", "labels", multiple=True, help="What an open-vocabulary model is to look for; repeatable.")
@click.option("--end2end", is_flag=True, help="With the head that needs no suppression (YOLOv10, YOLO26).")
@click.option("--precision", type=click.Choice(["fp32", "fp16", "int8"]), default="fp32", show_default=True)
@click.option("--images", type=click.Path(exists=True, file_okay=False, path_type=Path), help="To check fp16, int8 on.")
def export(
    model: str,
    name: str | None,
    out: Path,
    input_px: int,
    labels: tuple[str, ...],
    end2end: bool,
    precision: str,
    images: Path | None,
) -> None:
    """Export MODEL to ONNX through Ultralytics, with its entry for the catalogue.

    MODEL is a file (.pt, or .yaml for random weights) or a name that Ultralytics knows. Needs the extra `export`.
    """
    from pipeline.models import export as exporting
    from pipeline.models.pictures import pictures_in
    from pipeline.models.precision import reduced

    shown = pictures_in(images) if images else []
    named = exported_name(model, name)
    made = exporting.export(model, named, out.absolute(), input_px=input_px, labels=labels, end2end=end2end)
    _tell(made)
    if precision in {"fp16", "int8"}:
        smaller, moved = reduced(made, "fp16" if precision == "fp16" else "int8", shown)
        _tell(smaller)
        click.echo(
            f"{smaller.name}: over {moved.images} images scores moved by {moved.mean:.4f} in the mean, "
            f"{moved.largest:.4f} at most ({moved.worst_label or 'nothing was seen'})"
        )


def exported_name(model: str, name: str | None) -> str:
    """`name`, else one made of the model's. Raises UserError(BAD_INPUT) for one that no policy could give."""
    named = name or re.sub(r"[^a-z0-9._-]+", "-", Path(model).stem.lower()).strip("-._")
    if not _EXPORTED_NAME.fullmatch(named):
        raise UserError(
            Reason.BAD_INPUT,
            f"{named[:80]!a} is no name for a model: give --name, of at most 59 small letters, digits and . _ -",
        )
    return named


def _tell(made: Exported) -> None:
    click.echo(f"{made.name}: licence {made.entry['licence']}. {made.entry['licence_note']}", err=True)
    click.echo(f"{made.name}: {made.weights}, catalogue {made.catalogue}")
    click.echo(f"{made.name}: {made.entry['sha256']}")


def _chosen(registry: Registry, names: tuple[str, ...], everything: bool) -> list[str]:
    return [spec.name for spec in registry.specs()] if everything else [registry.spec(name).name for name in names]
