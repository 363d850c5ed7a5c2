from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from pipeline.errors import Reason, UserError
from workers.settings import ENV_PREFIX, Settings, effective, load_settings, variable, walk

SECRETS = ("VIDEOSIEVE_AWS__ACCESS_KEY_ID", "VIDEOSIEVE_AWS__SECRET_ACCESS_KEY", "VIDEOSIEVE_DATABASE__URL")


@pytest.fixture(autouse=True)
def empty_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def toml(text: str | bytes, name: str = "videosieve.toml") -> Path:
    path = Path(name)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def faults() -> list[str]:
    with pytest.raises(UserError) as caught:
        load_settings()
    assert (caught.value.reason, caught.value.exit_code) == (Reason.BAD_SETTING, 2)
    lines = caught.value.detail.split("\n")
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    return lines


def test_nothing_has_to_be_set() -> None:
    settings = load_settings()
    assert (settings.policy, settings.worker.lease_s, settings.api.port) == ("moderation", 120.0, 8080)
    assert settings.worker.concurrency >= 1
    assert settings.database.url is None
    assert effective(settings) == effective(load_settings())


def test_the_environment_sets_nested_fields_whatever_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDEOSIEVE_WORKER__LEASE_S", "30")
    monkeypatch.setenv("videosieve_worker__concurrency", "3")
    monkeypatch.setenv("VIDEOSIEVE_POLICY", "people-and-vehicles")
    settings = load_settings()
    assert (settings.worker.lease_s, settings.worker.concurrency) == (30.0, 3)
    assert settings.policy == "people-and-vehicles"
    assert settings.worker.poll_wait_s == 5


def test_a_section_may_be_json_and_the_rest_of_it_keeps_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDEOSIEVE_WORKER", '{"lease_s": 30}')
    monkeypatch.setenv("VIDEOSIEVE_WORKER__CONCURRENCY", "2")
    worker = load_settings().worker
    assert (worker.lease_s, worker.concurrency, worker.metrics_port) == (30.0, 2, 9464)


def test_a_toml_file_beside_us_is_read_and_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    toml('policy = "mine"\n[worker]\nlease_s = 60\nconcurrency = 7\n[log]\nlevel = "debug"\n')
    monkeypatch.setenv("VIDEOSIEVE_WORKER__LEASE_S", "30")
    settings = load_settings()
    assert (settings.policy, settings.worker.lease_s, settings.worker.concurrency) == ("mine", 30.0, 7)
    assert (settings.log.level, settings.log.format) == ("debug", "auto")


def test_a_toml_file_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    toml('policy = "beside"\n')
    monkeypatch.setenv("VIDEOSIEVE_CONFIG_FILE", str(toml('policy = "named"\n', "other.toml")))
    assert load_settings().policy == "named"


def test_a_named_file_that_is_missing_is_a_fault_and_the_default_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone.toml", ".", "nul\udcff"):
        monkeypatch.setenv("VIDEOSIEVE_CONFIG_FILE", name)
        with pytest.raises(UserError, match="no such file"):
            load_settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy = \n", "line 1"),
        ("[worker\n", "line 1"),
        ("a = 1\na = 2\n", "line 2"),
        (b"policy = '\xff'\n", "utf-8"),
        ("a = " + "[" * 20_000, "nested too deeply"),
        (b"\0", "line 1"),
    ],
)
def test_a_broken_toml_file_is_one_line_that_names_it(text: str | bytes, said: str) -> None:
    toml(text)
    (line,) = faults()
    assert line.startswith("videosieve.toml: not a readable TOML file: ")
    assert said in line


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("VIDEOSIEVE_WORKER__LEASE", "did you mean VIDEOSIEVE_WORKER__LEASE_S?"),
        ("VIDEOSIEVE_WORKERS__LEASE_S", "did you mean VIDEOSIEVE_WORKER__LEASE_S?"),
        ("VIDEOSIEVE_WORKER_LEASE_S", "did you mean VIDEOSIEVE_WORKER__LEASE_S?"),
        ("videosieve_polici", "did you mean VIDEOSIEVE_POLICY?"),
        ("VIDEOSIEVE_QQQQQQQQQQQQQQQQ", "`videosieve config` lists them all"),
        ("VIDEOSIEVE_WORKER__LEASE_S__X", "did you mean VIDEOSIEVE_WORKER__LEASE_S?"),
    ],
)
def test_an_unknown_variable_is_refused_with_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert faults() == [f"{name}: no such setting; {hint}"]


def test_every_unknown_variable_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDEOSIEVE_POLICI", "1")
    monkeypatch.setenv("VIDEOSIEVE_API__PROT", "1")
    assert [line.split(":")[0] for line in faults()] == ["VIDEOSIEVE_API__PROT", "VIDEOSIEVE_POLICI"]


def test_other_programs_variables_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDEOSIEVEX", "1")
    monkeypatch.setenv("VIDEOSIEVE_TEST_GPU", "1")
    monkeypatch.setenv("LEASE_S", "1")
    load_settings()


def test_unknown_names_in_a_file_are_refused_with_a_suggestion() -> None:
    toml("polici = 1\n[worker]\nlease = 3\n[qqqqqqqqqq]\n")
    assert sorted(faults()) == [
        "videosieve.toml: polici: no such setting; did you mean policy?",
        "videosieve.toml: qqqqqqqqqq: no such setting; `videosieve config` lists them all",
        "videosieve.toml: worker.lease: no such setting; did you mean worker.lease_s?",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VIDEOSIEVE_WORKER__LEASE_S", "soon"),
        ("VIDEOSIEVE_WORKER__LEASE_S", "nan"),
        ("VIDEOSIEVE_WORKER__LEASE_S", "inf"),
        ("VIDEOSIEVE_WORKER__LEASE_S", "1"),
        ("VIDEOSIEVE_WORKER__LEASE_S", ""),
        ("VIDEOSIEVE_WORKER__CONCURRENCY", "0"),
        ("VIDEOSIEVE_WORKER__CONCURRENCY", "1.5"),
        ("VIDEOSIEVE_WORKER__POLL_WAIT_S", "21"),
        ("VIDEOSIEVE_API__PORT", "65536"),
        ("VIDEOSIEVE_API__PORT", "-1"),
        ("VIDEOSIEVE_LOG__LEVEL", "loud"),
        ("VIDEOSIEVE_MODELS__DEVICE", "gpu"),
        ("VIDEOSIEVE_DECODER__WALL_S", "0"),
        ("VIDEOSIEVE_DECODER__WALL_S", "inf"),
        ("VIDEOSIEVE_DECODER__MEMORY_BYTES", "1"),
        ("VIDEOSIEVE_DECODER__MAX_PIXELS", "9" * 5000),
        ("VIDEOSIEVE_API__UPLOAD_EXPIRES_S", "604801"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    (line,) = faults()
    assert line.startswith(f"{name}: ")
    assert line.endswith("; correct or unset it")


def test_several_bad_values_are_one_line_each_and_say_where_each_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    toml("[api]\nport = 'x'\n[worker]\nlease_s = 'x'\n")
    monkeypatch.setenv("VIDEOSIEVE_WORKER__LEASE_S", "y")
    monkeypatch.setenv("VIDEOSIEVE_LOG__LEVEL", "y")
    assert sorted(line.split(": ")[0] + "|" + line.split(": ")[1].split(" ")[0] for line in faults()) == [
        "VIDEOSIEVE_LOG__LEVEL|input",
        "VIDEOSIEVE_WORKER__LEASE_S|input",
        "videosieve.toml|api.port",
    ]


@pytest.mark.parametrize("value", ["{", "[1]", "3", "words", ""])
def test_a_section_that_is_no_mapping_is_one_line(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("VIDEOSIEVE_WORKER", value)
    assert len(faults()) == 1


def test_a_section_of_a_file_that_is_no_table_is_one_line() -> None:
    toml("worker = 3\n")
    (line,) = faults()
    assert line.startswith("videosieve.toml: worker: ")


def test_a_bad_secret_is_not_repeated_in_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    toml('[database]\nurl = ["hunter2"]\n')
    assert "hunter2" not in "".join(faults())


def test_secrets_are_masked_where_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hunter2")
    settings = load_settings()
    assert settings.database.url == SecretStr("hunter2")
    shown = json.dumps(effective(settings))
    assert "hunter2" not in shown + repr(settings) + str(settings)
    assert shown.count("**********") == 3


def test_effective_settings_are_json_and_hold_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = effective(load_settings())
    json.dumps(shown, allow_nan=False)
    for path, _ in walk():
        value = shown
        for name in path:
            value = value[name]


def test_every_setting_says_what_it_is_for_and_has_its_own_variable() -> None:
    settings = list(walk())
    assert len({variable(path) for path, _ in settings}) == len(settings) > 30
    for path, description in settings:
        assert len(description) > 5, path
        assert not description.endswith("."), path


def test_settings_can_be_built_without_any_source() -> None:
    assert Settings(policy="x").policy == "x"
    with pytest.raises(ValueError, match="frozen"):
        Settings().policy = "y"  # type: ignore[misc]
