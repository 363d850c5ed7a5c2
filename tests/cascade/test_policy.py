from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import policies
from pipeline.cascade.policy import Policy
from pipeline.cascade.policy_file import parse_policy
from pipeline.errors import Reason, UserError
from tests.cascade.fakes import document, rule, sha

GOLDEN = {
    "moderation": "27dfe0863e9190ec5170e5518e78cbacf9034654a2944b4fcf2b8ba3bed58982",
    "people-and-vehicles": "46e7f3a053b23c4b82f90e10ba92a69f5c7d8d8e7db764b16220118b000df60a",
}
"""A hash that changes makes every run of that policy undecided: change one here only when that is meant."""

BASE = document({"cheap": {"p": rule("a"), "q": rule("b")}, "dear": {"q": rule("c")}})


def decision_hash(text: dict[str, Any]) -> str:
    return Policy.model_validate(text).decision_hash


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    text: Any = copy.deepcopy(BASE)
    holder = text
    for step in path[:-1]:
        holder = holder.setdefault(step, {}) if isinstance(holder, dict) else holder[step]
    holder[path[-1]] = to
    found: dict[str, Any] = text
    return found


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        items = list(value.items())
        order.shuffle(items)
        return {key: shuffled(inner, order) for key, inner in items}
    return [shuffled(inner, order) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", policies.shipped())
def test_a_shipped_policy_has_the_decision_hash_that_was_released(name: str) -> None:
    policy = policies.load(name)
    assert policy.name == name
    assert policy.decision_hash == GOLDEN[name]


def test_the_hash_is_the_same_for_every_order_of_the_keys() -> None:
    for seed in range(20):
        assert decision_hash(shuffled(BASE, random.Random(seed))) == decision_hash(BASE)  # noqa: S311


def test_comments_layout_and_written_out_defaults_do_not_change_the_hash() -> None:
    plain = yaml.safe_dump(BASE)
    assert parse_policy(f"# a comment\n{plain}# another\n", origin="x").decision_hash == decision_hash(BASE)
    assert parse_policy(yaml.safe_dump(BASE, default_flow_style=True), origin="x").decision_hash == decision_hash(BASE)
    defaults = {"per_minute": 5, "min_gap_s": 1, "max_keyframes": 60}
    assert decision_hash(changed("decision", "keyframes", to=defaults)) == decision_hash(BASE)
    assert decision_hash(changed("decision", "min_coverage", to=0.5)) == decision_hash(BASE)


def test_the_hash_survives_being_stored_and_read_back() -> None:
    policy = Policy.model_validate(BASE)
    assert (
        Policy.model_validate(policy.model_dump(mode="json", exclude_none=True)).decision_hash == policy.decision_hash
    )
    assert Policy.model_validate_json(policy.model_dump_json()).decision_hash == policy.decision_hash


STAGE = ("decision", "stages", 0)
DECISIVE: list[tuple[tuple[str | int, ...], Any]] = [
    (("decision", "keyframes", "per_minute"), 6),
    (("decision", "keyframes", "min_gap_s"), 2),
    (("decision", "keyframes", "max_keyframes"), 61),
    (("decision", "min_coverage"), 0.6),
    (("decision", "models", "cheap"), sha("other")),
    (("decision", "questions", "p", "text"), "Another?"),
    (("decision", "questions", "p", "sensitive"), True),
    ((*STAGE, "name"), "renamed"),
    ((*STAGE, "model"), "dear"),
    ((*STAGE, "input_px"), 320),
    ((*STAGE, "answers", "p", "labels"), ["a", "b"]),
    ((*STAGE, "answers", "p", "positive_at"), 0.81),
    ((*STAGE, "answers", "p", "negative_at"), 0.19),
]


@pytest.mark.parametrize(("path", "value"), DECISIVE, ids=[".".join(map(str, path)) for path, _ in DECISIVE])
def test_every_field_of_the_decision_part_changes_the_hash(path: tuple[str | int, ...], value: Any) -> None:
    text = changed(*path, to=value)
    if path[-1] == "model":
        del text["decision"]["models"]["cheap"]
    assert decision_hash(text) != decision_hash(BASE)


def test_the_order_of_stages_changes_the_hash() -> None:
    assert decision_hash(changed("decision", "stages", to=BASE["decision"]["stages"][::-1])) != decision_hash(BASE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", "others"),
        ("currency", "CHF"),
        ("latency_goal_s", 5),
        ("prices", {"cpu_second": 9, "vlm_image": "0.1"}),
    ],
)
def test_the_commercial_part_does_not_change_the_hash(field: str, value: Any) -> None:
    assert decision_hash(changed("commercial", field, to=value)) == decision_hash(BASE)


def test_a_policy_is_loaded_from_a_file_and_a_fault_names_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(BASE))
    assert policies.load(str(file)).decision_hash == decision_hash(BASE)
    file.write_text("name: x")
    with pytest.raises(UserError, match=r"mine\.yaml:1: "):
        policies.load(str(file))


@pytest.mark.parametrize("make", ["missing", "folder", "binary", "nul", "long"])
def test_a_policy_that_cannot_be_read_is_one_line(tmp_path: Path, make: str) -> None:
    file = tmp_path / "p.yaml"
    if make == "folder":
        file.mkdir()
    elif make == "binary":
        file.write_bytes(b"\xff\xfe\x00")
    name = {"nul": "a\0b", "long": "x" * 5000}.get(make, str(file))
    with pytest.raises(UserError) as caught:
        policies.load(name)
    assert caught.value.reason is Reason.BAD_POLICY
    assert "\n" not in caught.value.detail


def test_an_unknown_name_is_told_what_is_shipped() -> None:
    with pytest.raises(UserError, match="shipped are moderation, people-and-vehicles"):
        policies.load("moderatoin")
