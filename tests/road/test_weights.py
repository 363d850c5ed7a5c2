"""Weights that lie in the fleet's own S3: pulled by the command, from a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import tiny
from tests.road.conftest import Fleet, fleet_environment
from workers.cli import main
from workers.local.aws import EmbeddedAws

KEY = "models/\u00e4 b+%20/tiny.onnx"


@pytest.fixture
def models(fleet: Fleet, aws: EmbeddedAws, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of models, and a catalogue whose only source is an object of the artifacts bucket."""
    for name, value in fleet_environment(fleet, aws, database_url).items():
        monkeypatch.setenv(name, value)
    content = tiny.channel_means()
    entry = tiny.fields(content, head="classifier", labels=["b", "g", "r"])
    entry["sources"] = [{"s3": f"s3://{fleet.stack.artifacts}/{KEY}"}]
    monkeypatch.setenv("VIDEOSIEVE_MODELS__EXTRA_CATALOG", str(tiny.catalogue(tmp_path, {"tiny": entry})))
    folder = tmp_path / "models"
    monkeypatch.setenv("VIDEOSIEVE_MODELS__DIR", str(folder))
    return folder


def test_weights_come_from_s3_whole_or_not_at_all(
    models: Path, fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    content = tiny.channel_means()
    kept = {
        "does not exist": None,
        "SHA-256 is": content[:-1],  # truncated
        "SHA-256 is e3b0c44298fc": b"",
        "longer than the expected": content + b"x",
    }
    for said, stored in kept.items():
        if stored is not None:
            fleet.services.objects.put(fleet.stack.artifacts, KEY, stored, "application/octet-stream")
        assert main(["models", "pull", "tiny"]) == 1
        assert said in capsys.readouterr().err
        assert not models.exists() or list(models.iterdir()) == []
    fleet.services.objects.put(fleet.stack.artifacts, KEY, content, "application/octet-stream")
    assert main(["models", "pull", "tiny"]) == 0
    assert (models / "tiny.onnx").read_bytes() == content
    assert main(["models", "verify", "tiny"]) == 0
