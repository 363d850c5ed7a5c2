from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path

import pytest

from workers.doctor import Finding, diagnose
from workers.settings import ENV_PREFIX, load_settings


@pytest.fixture(autouse=True)
def empty_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIDEOSIEVE_MODELS__DIR", str(tmp_path / "models"))


def findings() -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnose(load_settings())}


def test_an_empty_machine_is_told_which_models_to_pull_and_nothing_is_created(tmp_path: Path) -> None:
    found = findings()
    assert found["policy moderation"].level == Finding.OK
    for model in ("nudenet-320n", "open-nsfw"):
        assert found[f"model {model}"].level == Finding.MISSING
        assert f"videosieve models pull {model}" in found[f"model {model}"].detail
    assert (found["database"].level, found["S3 and SQS"].level) == (Finding.NOTE, Finding.NOTE)
    assert list(tmp_path.iterdir()) == []


def test_altered_weights_are_found(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "open-nsfw.onnx").write_bytes(b"something else")
    assert findings()["model open-nsfw"].level == Finding.MISSING


@pytest.mark.parametrize(
    ("name", "value", "subject"),
    [
        ("VIDEOSIEVE_POLICY", "no-such-policy", "policy no-such-policy"),
        ("VIDEOSIEVE_MODELS__EXTRA_CATALOG", "gone.yaml", "model catalogue"),
        ("VIDEOSIEVE_DATABASE__URL", "postgresql://u:hunter2@127.0.0.1:9/x", "database"),
        ("VIDEOSIEVE_DATABASE__URL", "not a url hunter2", "database"),
    ],
)
def test_what_is_wrong_is_a_finding_and_the_rest_is_still_looked_at(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, subject: str
) -> None:
    monkeypatch.setenv(name, value)
    found = findings()
    assert found[subject].level == Finding.MISSING
    assert len(found[subject].detail) > 10
    assert "disk" in found
    assert all("hunter2" not in finding.detail for finding in found.values())


def test_a_policy_that_pins_other_weights_than_the_catalogue_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (resources.files("pipeline.policies") / "people-and-vehicles.yaml").read_text("utf-8")
    (tmp_path / "mine.yaml").write_text(re.sub("[0-9a-f]{64}", "f" * 64, text))
    monkeypatch.setenv("VIDEOSIEVE_POLICY", "mine.yaml")
    found = findings()["model yolox-nano"]
    assert found.level == Finding.MISSING
    assert found.detail.startswith(f"the policy pins SHA-256 {'f' * 64}, the catalogue has ")


def test_a_data_folder_that_does_not_exist_yet_is_measured_at_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIDEOSIEVE_DATA_DIR", "deep/er/folder")
    assert str(tmp_path) in findings()["disk"].detail


def test_the_sandbox_says_what_it_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings()["sandbox"]
    assert found.level in {Finding.OK, Finding.NOTE}
    assert "resource limits" in found.detail or "without" in found.detail
    monkeypatch.setattr("pipeline.video.sandbox.DecoderPool.layers", lambda _: ("resource limits",))
    found = findings()["sandbox"]
    assert found.level == Finding.NOTE
    assert "without Landlock and seccomp" in found.detail
