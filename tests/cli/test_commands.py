"""The commands around the fleet: config, doctor, models, policy, tenants, review, runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.media import ObjectRef
from pipeline.runs import Claimed, Commit, Lane
from pipeline.stores.ledger import Ledger
from pipeline.verdict import Answer, CascadeOutcome, RunState, Verdict
from tests.road.conftest import weights as weights  # noqa: PLC0414 - a fixture, used by name
from workers.cli import main
from workers.cli.models import exported_name


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, database_url: str, weights: Path, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIDEOSIEVE_DATABASE__URL", database_url)
    monkeypatch.setenv("VIDEOSIEVE_POLICY", str(weights / "colours.yaml"))
    monkeypatch.setenv("VIDEOSIEVE_MODELS__DIR", str(weights))
    monkeypatch.setenv("VIDEOSIEVE_MODELS__EXTRA_CATALOG", str(weights / "extra.yaml"))


def _doubtful_run(ledger: Ledger) -> Claimed:
    claim = ledger.claim(
        ObjectRef("b", "k.mp4", etag="e", size_bytes=1),
        policy="colours",
        decision_hash="h",
        lane=Lane.UPLOADS,
        worker="w",
        lease_s=30,
        trace_id="trace",
        event_at=None,
    )
    assert isinstance(claim, Claimed)
    verdict = Verdict("red", Answer.REVIEW, 0.5, "review", "means", "s", "colours", "h", "colour-team", (0,))
    ledger.commit(claim.run_id, claim.fence, Commit(RunState.IN_REVIEW, CascadeOutcome((verdict,), ())))
    return claim


def test_config_masks_secrets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VIDEOSIEVE_AWS__SECRET_ACCESS_KEY", "hush-hush")
    assert main(["config"]) == 0
    shown = capsys.readouterr().out
    assert "hush-hush" not in shown
    assert json.loads(shown)["worker"]["lease_s"] == 120
    assert main(["config", "--describe"]) == 0
    assert "VIDEOSIEVE_WORKER__LEASE_S" in capsys.readouterr().out


def test_doctor_says_what_is_missing_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor"]) == 0
    assert "schema current" in capsys.readouterr().out
    monkeypatch.setenv("VIDEOSIEVE_MODELS__DIR", str(tmp_path))
    monkeypatch.setenv("VIDEOSIEVE_DATABASE__URL", "postgresql://127.0.0.1:1/x")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "videosieve models pull means" in shown
    assert "127.0.0.1" in shown


def test_models_are_listed_with_their_licences_and_verified(capsys: pytest.CaptureFixture[str], weights: Path) -> None:
    assert main(["models", "list"]) == 0
    shown = capsys.readouterr().out
    assert "AGPL-3.0" in shown
    assert "CC0-1.0" in shown
    assert main(["models", "verify", "means"]) == 0
    assert capsys.readouterr().out == "means: ok\n"
    assert main(["models", "verify", "yolox-nano"]) == 1
    assert main(["models", "pull", "mean"]) == 2
    assert "Did you mean 'means'?" in capsys.readouterr().err


def test_policies_are_listed_shown_and_validated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["policy", "list"]) == 0
    assert "people-and-vehicles" in capsys.readouterr().out
    assert main(["policy", "show", "moderation"]) == 0
    assert json.loads(capsys.readouterr().out)["commercial"]["currency"] == "USD"
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema_version: 1\nname: x\n")
    assert main(["policy", "validate", str(bad)]) == 2
    shown = capsys.readouterr().err
    assert f"videosieve: bad_policy: {bad}:1: decision: missing; add it" in shown


def test_tenants_get_a_key_that_is_shown_once(capsys: pytest.CaptureFixture[str], ledger: Ledger) -> None:
    assert main(["tenants", "add", "acme"]) == 0
    key = capsys.readouterr().out.strip()
    tenant = ledger.authenticate(key)
    assert tenant is not None
    assert tenant.name == "acme"
    assert main(["tenants", "add", "acme"]) == 2
    assert main(["tenants", "add-key", "acme"]) == 0
    second = capsys.readouterr().out.strip()
    assert main(["tenants", "revoke-key", key.split("_")[1]]) == 0
    assert ledger.authenticate(key) is None
    assert ledger.authenticate(second) == tenant
    capsys.readouterr()
    assert main(["tenants", "list"]) == 0
    assert capsys.readouterr().out == f"{tenant.id}  acme\n"


def test_a_review_is_listed_answered_and_overridden_with_its_history(
    capsys: pytest.CaptureFixture[str], ledger: Ledger
) -> None:
    run = str(_doubtful_run(ledger).run_id)
    assert main(["review", "list", "--json"]) == 0
    item = json.loads(capsys.readouterr().out)
    assert (item["run_id"], item["question"], item["video"]) == (run, "red", "s3://b/k.mp4")
    for answer, who in (("positive", "ada"), ("negative", "grace")):
        assert main(["review", "answer", run, "red", answer, "--who", who, "--why", "looked closely"]) == 0
    capsys.readouterr()
    assert main(["review", "show", run, "red"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["answer"] == "negative"
    assert shown["machine_answer"] == "review"
    assert [(line["who"], line["answer"]) for line in shown["history"]] == [("ada", "positive"), ("grace", "negative")]
    assert main(["review", "list"]) == 0
    assert run not in capsys.readouterr().out
    assert main(["runs", "show", run]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "decided"


def test_what_does_not_exist_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = "00000000-0000-0000-0000-000000000000"
    for command in (["runs", "show", nothing], ["review", "show", nothing, "red"],
                    ["review", "answer", nothing, "red", "positive", "--why", "x"]):  # fmt: skip
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.startswith("videosieve: bad_input: ")


def test_an_outdated_schema_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_database_url: str
) -> None:
    monkeypatch.setenv("VIDEOSIEVE_DATABASE__URL", empty_database_url)
    assert main(["tenants", "list"]) == 1
    assert "videosieve db upgrade" in capsys.readouterr().err
    assert main(["db", "upgrade"]) == 0
    assert main(["tenants", "list"]) == 0


def test_a_typed_error_of_click_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keyframes"]) == 2
    assert main(["nonsense"]) == 2
    assert main(["reconcile", "--older-than", "0"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "named"), [("YOLO11n.pt", "yolo11n"), ("runs/My Helmets (2).pt", "my-helmets-2"), ("a" * 59, "a" * 59)]
)
def test_an_exported_model_gets_a_name_that_a_policy_can_give(model: str, named: str) -> None:
    assert exported_name(model, None) == named
    assert exported_name(model, "own") == "own"


@pytest.mark.parametrize("name", ["../../x", "Own", "é", "a b", "a\n", "a" * 60, "\x1b[31m", "\udcff"])
def test_a_name_that_no_policy_could_give_is_refused_before_anything_is_exported(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        main(["models", "export", f"{name}.pt" if not name else "x.pt", "--name", name or "é", "--out", str(tmp_path)])
        == 2
    )
    err = capsys.readouterr().err
    assert "give --name" in err
    assert err.strip().isprintable()
    assert list(tmp_path.iterdir()) == []
