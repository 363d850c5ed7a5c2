"""`videosieve keyframes` and `videosieve analyze`: local files and folders, no services."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pipeline import policies
from pipeline.analyze import analyze as analyze_video
from pipeline.cascade.policy import Policy
from pipeline.document import Document, analysis_document, keyframes_document
from pipeline.media import BgrImage, KeyframeSettings
from pipeline.report.page import render_report
from pipeline.video.source import Source
from workers.analysis import open_decoders, open_models, open_registry
from workers.cli.console import brief_money, shown, stdout
from workers.folder import RESULTS_FILE, Output, Work, find_files, run_files
from workers.settings import load_settings

_PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
_OUT = click.option("--out", type=click.Path(path_type=Path), help="Folder for pictures and results; resumable.")
_JOBS = click.option("--jobs", type=click.IntRange(1, 256), help="Videos at a time.  [default: one per core]")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document a line on stdout.")


@click.command()
@_PATHS
@_OUT
@_JOBS
@_JSON
def keyframes(paths: tuple[Path, ...], out: Path | None, jobs: int | None, as_json: bool) -> None:
    """Find cuts, motion and keyframes in PATHS (files, or folders with all that is below them)."""
    settings = load_settings()
    jobs = jobs or _cores()
    with open_decoders(settings.decoder, processes=jobs) as decoders:

        def work(source: Source, path: str) -> tuple[Document, Sequence[BgrImage]]:
            extraction = decoders.extract(source, KeyframeSettings())
            return keyframes_document(path, extraction, [None] * len(extraction.keyframes)), extraction.images

        documents = _run(paths, work, out=out, jobs=jobs, as_json=as_json, settings_hash="keyframes-1")
    if not as_json:
        stdout().print(_keyframes_table(documents))


@click.command()
@_PATHS
@click.option("--policy", "policy_name", help="A shipped policy's name or a file.  [default: the setting `policy`]")
@_OUT
@_JOBS
@_JSON
def analyze(
    paths: tuple[Path, ...], policy_name: str | None, out: Path | None, jobs: int | None, as_json: bool
) -> None:
    """Decide a policy's questions about PATHS (files, or folders with all that is below them)."""
    settings = load_settings()
    policy = policies.load(policy_name or settings.policy)
    jobs = jobs or _cores()
    registry = open_registry(settings)
    for model in policy.decision.models:
        registry.path(model)  # missing weights are one line now, before any work
    models = open_models(settings)
    with open_decoders(settings.decoder, processes=jobs) as decoders:

        def work(source: Source, path: str) -> tuple[Document, Sequence[BgrImage]]:
            analysis = analyze_video(source, policy, decoders, models)
            images = analysis.extraction.images
            return analysis_document(path, policy, analysis, [None] * len(images)), images

        documents = _run(paths, work, out=out, jobs=jobs, as_json=as_json, settings_hash=_settings_hash(policy))
    if out is not None:
        report = write_report(documents, out, title=f"videosieve: {policy.name}")
        click.echo(f"report: {report}", err=True)
    if not as_json:
        stdout().print(analysis_table(documents, list(policy.decision.questions)))
        click.echo(f"questions settled by: {decided_by(documents)}")


def write_report(documents: Sequence[Document], out: Path, *, title: str) -> Path:
    """Write `out`/index.html; its path."""

    def read_image(image: str) -> bytes | None:
        try:
            return (out / image).read_bytes()
        except OSError:
            return None

    path = out / "index.html"
    path.write_text(render_report(documents, title=title, read_image=read_image), encoding="utf-8")
    return path


def _settings_hash(policy: Policy) -> str:
    """What a stored result depends on: the decision part, and the prices that its money was computed with."""
    commercial = policy.commercial.model_dump_json()
    return f"{policy.decision_hash}-{hashlib.sha256(commercial.encode()).hexdigest()[:16]}"


def _run(
    paths: Sequence[Path], work: Work, *, out: Path | None, jobs: int, as_json: bool, settings_hash: str
) -> list[Document]:
    """Run `work` over all files with a progress bar on stderr, and documents on stdout as they come."""
    passed_over = Counter[str]()
    files = find_files(paths, leave_out=out, passed_over=passed_over)
    if told := ", ".join(f"{count} {kind}" for kind, count in sorted((+passed_over).items())):
        click.echo(f"warning: passed over, as they are no files: {told}", err=True)
    stderr = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("videos", total=len(files))

        def on_result(_file: Path, document: Document) -> None:
            progress.advance(task)
            if as_json:
                click.echo(json.dumps(document))

        if out is None:
            return run_files(files, work, jobs=jobs, output=None, on_result=on_result)
        with Output(out, settings_hash) as output:
            if output.passed_over:
                told = f"{output.passed_over} lines of {out / RESULTS_FILE} are cut short or edited"
                click.echo(f"warning: {told}: their videos are done again", err=True)
            return run_files(files, work, jobs=jobs, output=output, on_result=on_result)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keyframes_table(documents: Sequence[Document]) -> Table:
    table = Table("video", "length", "cuts", "motion", "keyframes", "frames decoded", "CPU")
    for document in documents:
        if rejected := document.get("rejected"):
            table.add_row(shown(document["path"]), Text(f"{rejected['reason']}: {rejected['detail']}"))
            continue
        video, cost = document["video"], document["cost"]
        table.add_row(
            shown(document["path"]),
            f"{video['duration_s']:.1f} s",
            str(len(document["cuts_s"])),
            str(len(document["motion_s"])),
            str(len(document["keyframes"])),
            f"{cost['frames_decoded']} of {video['frames']}",
            f"{cost['cpu_s']:.2f} s",
        )
    return table


def analysis_table(documents: Sequence[Document], questions: Sequence[str]) -> Table:
    """One line per video: its keyframes, which stage decided what, and what it cost."""
    table = Table("video", "keyframes", *questions, "cost", "CPU")
    for document in documents:
        if rejected := document.get("rejected"):
            table.add_row(shown(document["path"]), "–", Text(f"rejected: {rejected['reason']}"))
            continue
        verdicts = {verdict["question"]: verdict for verdict in document["verdicts"]}
        money = document["money"]
        cpu_s = document["cost"]["cpu_s"] + sum(stage["cpu_s"] for stage in document["stages"])
        table.add_row(
            shown(document["path"]),
            str(len(document["keyframes"])),
            *(_answer(verdicts[question]) for question in questions),
            brief_money(money["total_nano"], money["currency"]),
            f"{cpu_s:.2f} s",
        )
    return table


def decided_by(documents: Sequence[Document]) -> str:
    """How many questions each stage settled, in words: `detector 5, classifier 1, left to a person 2`."""
    counts = Counter(verdict["stage"] for document in documents for verdict in document.get("verdicts", ()))
    waiting = counts.pop("review", 0)
    return ", ".join([*(f"{stage} {count}" for stage, count in counts.items()), f"left to a person {waiting}"])


def _answer(verdict: Document) -> Text:
    style = {"positive": "bold red", "negative": "green", "review": "yellow"}[verdict["answer"]]
    return Text(f"{verdict['answer']} ({verdict['score']:.2f}, {verdict['stage']})", style=style)
