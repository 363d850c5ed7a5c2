"""`videosieve`: the group that holds every command, and how errors reach a person.

Exit codes: 0 done (a rejected video is a result), 1 a failure of ours, 2 the caller's mistake, 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from pipeline.errors import FatalError, Reason, VideosieveError

_COMMANDS = {
    "analyze": "workers.cli.files",
    "api": "workers.cli.fleet",
    "backfill": "workers.cli.fleet",
    "config": "workers.cli.setup",
    "costs": "workers.cli.costs",
    "db": "workers.cli.setup",
    "demo": "workers.cli.demo",
    "dlq": "workers.cli.dlq",
    "doctor": "workers.cli.setup",
    "down": "workers.cli.fleet",
    "judge": "workers.cli.fleet",
    "keyframes": "workers.cli.files",
    "models": "workers.cli.models",
    "policy": "workers.cli.policy",
    "probe": "workers.cli.probe",
    "reconcile": "workers.cli.fleet",
    "review": "workers.cli.review",
    "runs": "workers.cli.review",
    "tenants": "workers.cli.setup",
    "up": "workers.cli.fleet",
    "vlm": "workers.cli.vlm",
    "wire": "workers.cli.setup",
    "worker": "workers.cli.fleet",
}

_REMEDIES = {
    Reason.DATABASE_UNAVAILABLE: "is PostgreSQL running? VIDEOSIEVE_DATABASE__URL says where",
    Reason.STORE_UNAVAILABLE: "is S3 reachable? VIDEOSIEVE_AWS__ENDPOINT_URL says where, `videosieve up` runs one",
    Reason.QUEUE_UNAVAILABLE: "is SQS reachable? VIDEOSIEVE_AWS__ENDPOINT_URL says where, `videosieve up` runs one",
    Reason.FORBIDDEN: "do the access key and its permissions fit?",
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is used, so that every start is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - likewise
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="videosieve")
def root() -> None:
    """Decide questions about videos by filtration: keyframes, a cascade of models, a person for the rest."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Errors of the known kinds are one clear message, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may hold what the terminal's encoding has not
            stream.reconfigure(errors="backslashreplace")
    given = None if arguments is None else list(arguments)
    try:
        code = root.main(args=given, prog_name="videosieve", standalone_mode=False)
        return code if isinstance(code, int) else 0  # click returns the code of an Exit that a command raised
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except VideosieveError as error:
        for line in error.detail.splitlines():
            hint = f"; {_REMEDIES[error.reason]}" if error.reason in _REMEDIES else ""
            click.echo(f"videosieve: {error.reason.value}: {line}{hint}", err=True)
        return error.exit_code if isinstance(error, FatalError) else 1
    except BrokenPipeError:  # `videosieve … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that cannot be written: nothing that a traceback would explain
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"videosieve: bad_input: {where}{error.strerror or error}", err=True)
        return 2
