"""`videosieve vlm`: the engine behind a policy's VLM stage."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

_MARKS = {"ok": "ok    ", "poor": "poor  ", "failed": "FAILED"}


@click.group()
def vlm() -> None:
    """The vision-language model's engine."""


@vlm.command()
@click.argument("url", required=False)
@click.option("--model", help="The engine's name of the model.  [default: the active policy's, else the first served]")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a finding on stdout.")
def check(url: str | None, model: str | None, as_json: bool) -> None:
    """Try the engine at URL: what it can do, how fast it is, and what to set.

    URL is the base of its OpenAI-compatible API, as http://HOST:8000/v1; without it the setting `vlm.url` is tried.
    Exit code 1 where videosieve cannot work with it.
    """
    from pipeline.cascade.vlm_part import ImagesPart, SamplingPart
    from pipeline.errors import Reason, UserError
    from workers.analysis import active_policy
    from workers.engine import open_engine
    from workers.settings import load_settings
    from workers.vlm_check import check_engine, is_usable

    settings = load_settings()
    wanted = url or settings.vlm.url
    if wanted is None:
        raise UserError(Reason.BAD_INPUT, "which engine? name its URL, or set VIDEOSIEVE_VLM__URL")
    stage = active_policy(settings).decision.vlm
    findings = []
    with open_engine(settings.vlm, url=wanted) as client:
        images, sampling = (stage.images, stage.sampling) if stage else (ImagesPart(), SamplingPart())
        chosen = model or (stage.model if stage else None)
        for finding in check_engine(client, model=chosen, images=images, sampling=sampling):
            findings.append(finding)
            if as_json:
                click.echo(json.dumps(asdict(finding)))
            else:
                click.echo(f"{_MARKS[finding.grade.value]} {finding.name.replace('_', ' ')}: {finding.found}")
                if finding.advice:
                    click.echo(f"       → {finding.advice}")
    if not is_usable(findings):
        raise click.exceptions.Exit(1)
