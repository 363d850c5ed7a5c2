from __future__ import annotations

import copy
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import policies
from pipeline.cascade.policy import DecisionPart, KeyframesPart, ModelPin, Policy, QuestionPart, StagePart
from pipeline.cascade.policy_file import parse_policy
from pipeline.cascade.rules import AnswerRule, CropPart
from pipeline.cascade.vlm_part import ImagesPart, SamplingPart, VlmAnswer, VlmPart
from pipeline.errors import Reason, UserError
from tests.cascade.fakes import document, rule, sha, vlm

GOLDEN = {
    "moderation": "6e6cbfa4eab6dcdf60688e73b7b656c5031a01b2e6d2e3f28829934e6218d384",
    "people-and-vehicles": "64b3e8c4168ea70fc092e95be5a37f7142eb024e1b1543bfec7906baea933349",
}
"""A hash that changes makes every run of that policy undecided: change one here only when that is meant."""

BASE = document({"cheap": {"p": rule("a"), "q": rule("b")}, "dear": {"q": rule("c")}})
WITH_VLM = document({"cheap": {"p": rule("a"), "q": rule("b")}, "dear": {"q": rule("c")}}, vlm=vlm("q"))


def decision_hash(text: dict[str, Any]) -> str:
    return Policy.model_validate(text).decision_hash


def changed(*path: str | int, to: Any, base: dict[str, Any] = BASE) -> dict[str, Any]:
    text: Any = copy.deepcopy(base)
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
    policy = Policy.model_validate(WITH_VLM)
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
    ((*STAGE, "answers", "p", "combine"), "mean"),
    ((*STAGE, "answers", "p", "combine"), {"at_least": 2}),
    ((*STAGE, "answers", "p", "calibration"), [[0, 0], [1, 0.9]]),
    (("decision", "stages", 1, "crop"), {"stage": "cheap", "labels": ["a"]}),
    (("decision", "models", "cheap"), {"weights": sha("cheap"), "reading": sha("reading")}),
    (("decision", "vlm"), vlm("q")),
]
VLM: list[tuple[tuple[str | int, ...], Any]] = [
    (("name",), "other"),
    (("model",), "Org/Model-72B"),
    (("prompt",), "Look."),
    (("sampling", "temperature"), 0.1),
    (("sampling", "top_p"), 0.9),
    (("sampling", "top_k"), 40),
    (("sampling", "max_tokens"), 511),
    (("sampling", "seed"), 1),
    (("images", "max_images"), 7),
    (("images", "max_pixels"), 600_000),
    (("images", "max_image_tokens"), 8191),
    (("images", "pixels_per_token"), 1024),
    (("answers", "q", "wording"), "?"),
    (("answers", "q", "positive_at"), 0.7),
    (("answers", "q", "negative_at"), 0.1),
    (("answers", "q", "calibration"), [[0, 0], [1, 0.9]]),
    (("answers", "p"), vlm("p")["answers"]["p"]),
]


@pytest.mark.parametrize(("path", "value"), DECISIVE, ids=[".".join(map(str, path)) for path, _ in DECISIVE])
def test_every_field_of_the_decision_part_changes_the_hash(path: tuple[str | int, ...], value: Any) -> None:
    text = changed(*path, to=value)
    if path[-1] == "model":
        del text["decision"]["models"]["cheap"]
    assert decision_hash(text) != decision_hash(BASE)


@pytest.mark.parametrize(("path", "value"), VLM, ids=[".".join(map(str, path)) for path, _ in VLM])
def test_every_field_of_the_vlm_stage_changes_the_hash(path: tuple[str | int, ...], value: Any) -> None:
    assert decision_hash(changed("decision", "vlm", *path, to=value, base=WITH_VLM)) != decision_hash(WITH_VLM)


def test_no_field_of_the_decision_part_is_left_out_of_these_tests() -> None:
    tried = {str(part) for path, _ in [*DECISIVE, *VLM] for part in path}
    stage_crop, pin = set(CropPart.model_fields), set(ModelPin.model_fields)
    parts = (DecisionPart, KeyframesPart, QuestionPart, StagePart, AnswerRule, VlmPart, SamplingPart, ImagesPart)
    fields = {field for part in (*parts, VlmAnswer) for field in part.model_fields} - stage_crop - pin
    assert fields - tried == {"questions"} - tried


@pytest.mark.parametrize("field", ["labels", "min_score", "margin", "most"])
def test_every_field_of_a_crop_changes_the_hash(field: str) -> None:
    crop = {"stage": "cheap", "labels": ["a"]}
    other = crop | {field: {"labels": ["b"], "min_score": 0.5, "margin": 0.5, "most": 1}[field]}
    of = [decision_hash(changed("decision", "stages", 1, "crop", to=value)) for value in (crop, other)]
    assert of[0] != of[1]


@pytest.mark.parametrize("value", ["any", {"at_least": 1}, None])
def test_a_default_combination_that_is_written_out_does_not_change_the_hash(value: Any) -> None:
    assert decision_hash(changed(*STAGE, "answers", "p", "combine", to=value)) == decision_hash(BASE)


def test_pinning_the_weights_alone_is_the_same_in_either_form() -> None:
    pin = {"weights": sha("cheap")}
    assert decision_hash(changed("decision", "models", "cheap", to=pin)) == decision_hash(BASE)


def test_a_document_of_version_1_keeps_its_hash_and_gets_its_prices_translated() -> None:
    old = changed("schema_version", to=1)
    old["commercial"]["prices"] = {"cpu_second": "0.001", "vlm_image": "0.000768", "review": "0.5"}
    policy = Policy.model_validate(old)
    assert policy.decision_hash == decision_hash(BASE)
    assert policy.schema_version == 2
    prices = policy.commercial.prices
    assert (prices.review_minute * prices.minutes_per_review, prices.vlm.token_in) == (
        Decimal("0.5"),
        Decimal("0.000001"),
    )


def test_the_document_hash_tells_commercial_parts_apart() -> None:
    one, other = (Policy.model_validate(changed("commercial", "owner", to=name)) for name in ("a", "b"))
    assert one.decision_hash == other.decision_hash
    assert one.document_hash != other.document_hash
    assert Policy.model_validate(one.document()).document_hash == one.document_hash


def test_the_order_of_stages_changes_the_hash() -> None:
    assert decision_hash(changed("decision", "stages", to=BASE["decision"]["stages"][::-1])) != decision_hash(BASE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", "others"),
        ("currency", "CHF"),
        ("latency_goal_s", 5),
        ("budgets", {"per_video": {"amount": 1}, "per_day": {"amount": 2, "when_spent": "defer"}}),
        ("prices", {"cpu_second": 9, "vlm": {"token_in": "0.1"}}),
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
