"""The documents say what the code does: generated pages, reasons, links, commands, the drawing, the compose file."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest

from pipeline.cascade.policy_file import parse_policy
from pipeline.errors import Reason
from workers.api import faults
from workers.cli.root import root

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "settings.md", "metrics.md"])
def test_the_reference_pages_follow_the_code(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == _generator().PAGES[name](), "run `make docs`"


def test_every_reason_is_explained() -> None:
    page = (ROOT / "docs" / "reasons.md").read_text()
    missing = [reason.value for reason in Reason if f"| `{reason.value}` |" not in page]
    assert missing == []


def test_the_apis_own_reasons_are_explained() -> None:
    page = (ROOT / "docs" / "reasons.md").read_text()
    own = {value for name, value in vars(faults).items() if name.isupper() and isinstance(value, str)}
    assert own
    assert [reason for reason in sorted(own) if re.fullmatch(r"[a-z_]+", reason) and f"`{reason}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def _commands() -> list[tuple[str, str]]:
    """Every `videosieve …` in a shell block or in backticks of the documents."""
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`(videosieve [^`]*)`", text)
        for line in lines:
            commands = re.findall(r"videosieve (?:[a-z][^|&#)$`]*)", line)
            found += [(page.name, command.strip()) for command in commands]
    return found


@pytest.mark.parametrize(("page", "command"), _commands())
def test_every_command_in_the_documents_exists(page: str, command: str) -> None:
    group: click.Command = root
    words = shlex.split(command.replace("…", ""))[1:]
    while words and isinstance(group, click.Group):
        found = group.get_command(click.Context(group), words[0].rstrip(",.;:"))
        assert found is not None, f"{page}: {command}"
        group = found
        words = words[1:]
    options = {option for parameter in group.params for option in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in options]
    assert unknown == [], f"{page}: {command}"


def test_the_drawing_matches_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    contracted = [name.strip() for layer in layers for name in layer.split("|")]
    page = (ROOT / "docs" / "architecture.md").read_text()
    (drawing,) = re.findall(r"```layers\n(.*?)```", page, re.DOTALL)
    drawn = [line.split()[0] for line in drawing.splitlines() if line and line[0].isalpha()]
    assert drawn[0] == "workers"
    assert drawn[1:] == contracted


def test_every_file_in_where_is_it_decided_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("## Where is it decided")[1].split("##")[0]
    files = re.findall(r"`([\w/.*-]+)`", table)
    assert len(files) > 8
    missing = [name for name in files if not list(ROOT.glob(name)) and not list(ROOT.glob(f"pipeline/video/{name}"))]
    assert missing == []


def test_the_policy_in_the_documents_is_valid() -> None:
    page = (ROOT / "docs" / "policy.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    policy = parse_policy(example, origin="docs/policy.md")
    assert policy.name == "night-watch"
    hashes = re.findall(r"policy activate ([0-9a-f]{8,})", page)
    assert hashes
    assert all(policy.document_hash.startswith(shown) for shown in hashes)  # of the very example on the page


def test_the_compose_file_is_valid() -> None:
    compose = Path(sys.executable).with_name("docker-compose")
    assert compose.exists(), "the extra `dev` brings it"
    done = subprocess.run(
        [str(compose), "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet"],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_image_recipe_copies_what_the_package_needs() -> None:
    recipe = (ROOT / "infra" / "images" / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+)$", recipe, re.MULTILINE)
    for name in {word for line in copied for word in line.split()[:-1]}:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
