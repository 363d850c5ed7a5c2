"""`videosieve policy` and `videosieve costs`, against a real ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.costs import StageCost
from pipeline.runs import Activation
from pipeline.stores.ledger import Ledger
from tests.cli.test_commands import _settings as _settings  # noqa: PLC0414 - a fixture for every test
from tests.road.conftest import weights as weights  # noqa: PLC0414 - a fixture, used by name
from tests.stores.test_costs import spend
from workers.cli import main
from workers.cli.costs import money


@pytest.fixture
def stricter(weights: Path, tmp_path: Path) -> Path:
    """The colours policy with one threshold moved, and another owner."""
    text = (weights / "colours.yaml").read_text()
    path = tmp_path / "stricter.yaml"
    path.write_text(text.replace("positive_at: 0.7", "positive_at: 0.9", 1).replace("colour-team", "strict-team"))
    return path


def latest(ledger: Ledger) -> Activation:
    return ledger.activations()[0]


def test_a_policy_is_compared_activated_listed_and_rolled_back(
    capsys: pytest.CaptureFixture[str], ledger: Ledger, weights: Path, stricter: Path
) -> None:
    colours = str(weights / "colours.yaml")
    assert main(["policy", "diff", "active", str(stricter)]) == 0  # nothing activated: the one of the settings
    out, err = capsys.readouterr()
    assert "decision.stages.detector.answers.red.positive_at: 0.7 → 0.9" in out
    assert 'commercial.owner: "colour-team" → "strict-team"' in out
    assert "decides again" in err
    assert main(["policy", "activate", colours, "--why", "first", "--who", "ada"]) == 0
    first = latest(ledger)
    assert main(["policy", "activate", str(stricter), "--why", "too many\nalarms", "--who", "bob"]) == 0
    assert (latest(ledger).who, latest(ledger).why) == ("bob", "too many\nalarms")
    assert main(["policy", "activate", first.document_hash[:10], "--why", "rolled back", "--who", "ada"]) == 0
    assert latest(ledger).document_hash == first.document_hash
    capsys.readouterr()
    assert main(["policy", "show", "active"]) == 0
    assert json.loads(capsys.readouterr().out)["commercial"]["owner"] == "colour-team"
    assert main(["policy", "history"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("rolled back") < shown.index("too many") < shown.index("first")
    assert main(["policy", "history", "--json", "--limit", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["who"] for line in lines] == ["ada", "bob"]


def test_a_file_that_is_called_active_does_not_hide_the_active_policy(
    capsys: pytest.CaptureFixture[str],
    ledger: Ledger,
    stricter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "active").write_text(stricter.read_text())
    monkeypatch.chdir(tmp_path)
    owners = []
    for which in ("active", "./active"):
        assert main(["policy", "show", which]) == 0
        owners.append(json.loads(capsys.readouterr().out)["commercial"]["owner"])
    assert owners == ["colour-team", "strict-team"]


def test_a_commercial_change_says_that_nothing_becomes_undecided(
    capsys: pytest.CaptureFixture[str], weights: Path, tmp_path: Path
) -> None:
    dearer = tmp_path / "dearer.yaml"
    dearer.write_text((weights / "colours.yaml").read_text().replace("review_minute: 0.1", "review_minute: 0.2"))
    assert main(["policy", "diff", str(weights / "colours.yaml"), str(dearer), "--json"]) == 0
    out, err = capsys.readouterr()
    (change,) = [json.loads(line) for line in out.splitlines()]
    assert (change["field"], change["is_decisive"]) == ("commercial.prices.review_minute", False)
    assert "nothing becomes undecided" in err
    assert main(["policy", "diff", str(dearer), str(dearer)]) == 0
    assert capsys.readouterr() == ("", "nothing differs\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["activate", "moderation"], "--why"),
        (["activate", "moderation", "--why", " "], "cannot be empty"),
        (["activate", "abcdef0123", "--why", "x"], "no version starts with 'abcdef0123'"),
        (["show", "nonsense"], "no such file, nor a shipped policy"),
        (["diff", "active", "nonsense"], "no such file, nor a shipped policy"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_activates_nothing(
    capsys: pytest.CaptureFixture[str], ledger: Ledger, arguments: list[str], said: str
) -> None:
    assert main(["policy", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert ledger.activations() == []


def test_a_policy_whose_models_a_worker_could_not_load_is_not_activated(
    capsys: pytest.CaptureFixture[str], ledger: Ledger, weights: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((weights / "colours.yaml").read_text().replace("labels: [red]", "labels: [crimson]"))
    assert main(["policy", "activate", str(wrong), "--why", "x"]) == 2
    assert "has no label crimson" in capsys.readouterr().err
    assert ledger.activations() == []
    assert main(["policy", "activate", str(wrong), "--why", "x", "--unchecked"]) == 0
    assert latest(ledger).policy == "colours"


def test_a_pin_is_printed_as_it_stands_in_a_policy(capsys: pytest.CaptureFixture[str], weights: Path) -> None:
    assert main(["models", "pin", "means"]) == 0
    line = capsys.readouterr().out.strip()
    text = (weights / "colours.yaml").read_text()
    pinned = weights / "pinned.yaml"
    pinned.write_text(text.replace(text.split("models: {")[1].split("}")[0], line))
    assert main(["policy", "activate", str(pinned), "--why", "pinned"]) == 0
    pinned.write_text(pinned.read_text().replace("reading: ", "reading: 0")[:-1].replace(line[-4:-1], line[-3:-1]))


def test_costs_are_shown_as_a_table_and_as_exact_lines(capsys: pytest.CaptureFixture[str], ledger: Ledger) -> None:
    spend(ledger, StageCost("keyframes", money_nano=1_500_000, every_frame_nano=10**9, every_keyframe_nano=3))
    spend(ledger, StageCost("judge", "m", money_nano=2**53 + 1, tokens_in=10, tokens_cached=4, tokens_out=1))
    assert main(["costs", "--by", "stage", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["stage"], line["money_nano"], line["runs"]) for line in lines] == [
        ("judge", 2**53 + 1, 1),
        ("keyframes", 1_500_000, 1),
    ]
    assert (lines[0]["tokens_cached"], lines[1]["every_frame_nano"]) == (4, 10**9)
    assert main(["costs", "--by", "tenant", "--since", "2020-01-01"]) == 0
    assert "USD" in capsys.readouterr().out
    assert main(["costs", "--until", "2020-01-01", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_money_for_people_is_exact_to_a_millionth() -> None:
    assert money(1_500_000, "USD") == "0.001500 USD"
    assert money(2**60, "EUR") == "1152921504.606847 EUR"
