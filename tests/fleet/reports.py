"""Results of an experiment as JSON, a Markdown table and a plot, with the machine that they were measured on."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

_TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/[^/\"]+")
"""Folders of one run say nothing to anybody else."""
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"


def say(line: str) -> None:
    """Progress, for whoever waits."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def machine() -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{name: version(name) for name in ("av", "onnxruntime", "boto3", "ministack")},
    }


def write_json(name: str, result: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    text = json.dumps({"machine": machine(), **result}, indent=1, default=str)
    path.write_text(_TEMPORARY.sub("…", text) + "\n")
    return path


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return "–" if value is None else str(value)


def plots() -> Any:
    """matplotlib for SVG files that come out alike; SystemExit where it is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("plots want matplotlib: pip install '.[bench]'")
    importlib.import_module("matplotlib").use("svg")
    found: Any = importlib.import_module("matplotlib.pyplot")
    found.rcParams.update({"svg.hashsalt": "videosieve", "font.size": 9, "axes.spines.top": False})
    return found


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
