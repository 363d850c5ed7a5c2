"""Writes the reference pages that follow from the code: `python docs/generate.py`. A test holds them to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from prometheus_client import CollectorRegistry
from pydantic_core import PydanticUndefined

from workers.cli.root import root
from workers.metrics import Metrics
from workers.settings import Settings, variable, walk

DOCS = Path(__file__).parent


def cli_page() -> str:
    """Every command's help."""
    lines = ["# Command line", "", "Exit codes: 0 done (a rejected video is a result), 1 a failure of ours, 2 the",
             "caller's mistake, 130 interrupted. Documents go to stdout, progress and logs to stderr.", ""]  # fmt: skip
    for name, command in _commands(root, "videosieve"):
        names = ["-h", "--help"]  # as below the root: click remembers the option it made first
        context = click.Context(
            command, info_name=name, max_content_width=100, terminal_width=100, help_option_names=names
        )
        lines += [f"## {name}", "", "```", command.get_help(context), "```", ""]
    return "\n".join(lines)


def _commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix} {name}")
        elif command is not None:
            yield f"{prefix} {name}", command


def settings_page() -> str:
    """Every setting, its variable, default and meaning."""
    lines = [
        "# Settings",
        "",
        "Environment variables win over the TOML file that `VIDEOSIEVE_CONFIG_FILE` names (else `./videosieve.toml`),",
        "which wins over the defaults. In TOML, `VIDEOSIEVE_WORKER__LEASE_S` is `lease_s` in the table `[worker]`.",
        "`videosieve config` prints the values in force, secrets masked. A name that does not exist is an error.",
        "",
        "| variable | default | meaning |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{variable(path)}` | {_default(path)} | {meaning} |" for path, meaning in walk()]
    return "\n".join(lines) + "\n"


def _default(path: tuple[str, ...]) -> str:
    model: type = Settings
    for name in path[:-1]:
        model = model.model_fields[name].annotation  # type: ignore[attr-defined]  # every step is a section
    field = model.model_fields[path[-1]]  # type: ignore[attr-defined]  # likewise
    if field.default is PydanticUndefined:
        return "two per core" if path == ("worker", "concurrency") else "one per core"
    return "–" if field.default is None else f"`{field.default}`"


def metrics_page() -> str:
    """Every metric, its type, labels and meaning."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    lines = [
        "# Metrics",
        "",
        "The API serves them at `/metrics` on its own port, a worker on `VIDEOSIEVE_WORKER__METRICS_PORT`.",
        "",
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        lines.append(f"| `{name}` | {family.type} | {_labels(metrics, family.name)} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def _labels(metrics: Metrics, name: str) -> str:
    for collector in vars(metrics).values():
        if getattr(collector, "_name", None) == name:
            return ", ".join(f"`{label}`" for label in collector._labelnames) or "–"  # noqa: SLF001 - not public
    return "–"


PAGES = {"cli.md": cli_page, "settings.md": settings_page, "metrics.md": metrics_page}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        sys.stderr.write(f"docs/{name}\n")


if __name__ == "__main__":
    main()
