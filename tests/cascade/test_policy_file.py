from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cascade.policy_file import MAX_FAULTS, MAX_POLICY_CHARS, parse_policy
from pipeline.errors import Reason, UserError
from tests.cascade.fakes import document, rule

GOOD = f"""\
schema_version: 2
name: cats
decision:
  keyframes:
    per_minute: 5
  models:
    tiny: {"a" * 64}
  questions:
    cat:
      text: Is a cat to be seen?
  stages:
    - name: first
      model: tiny
      answers:
        cat:
          labels: [cat, "katze ü 🐈"]
          positive_at: 0.8
          negative_at: 0.2
commercial:
  owner: pets
"""


def faults(text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        parse_policy(text, origin="cats.yaml")
    assert caught.value.reason is Reason.BAD_POLICY
    assert caught.value.exit_code == 2
    lines = caught.value.detail.split("\n")
    assert all(line.startswith("cats.yaml:") and line.isprintable() for line in lines)
    assert all(len(line) < 500 for line in lines)
    return lines


def with_line(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_a_good_policy_is_read() -> None:
    policy = parse_policy(GOOD, origin="cats.yaml")
    assert policy.decision.stages[0].answers["cat"].labels == ("cat", "katze ü 🐈")
    assert policy.decision.keyframes.settings().per_minute == 5.0
    assert policy.commercial.currency == "USD"


VLM = "{name: judge, model: M/7B, prompt: look, answers: {dog: {wording: a dog, positive_at: 0.8, negative_at: 0.2}}}"
VLM_WITH_SMALL_IMAGES = VLM.replace("dog", "cat").replace(
    "name", "images: {max_images: 64, max_image_tokens: 2000}, name"
)

FAULTS: list[tuple[str, str, str]] = [
    # replace, by, the one line that it gives
    ("schema_version: 2", "schema_version: 3", "1: schema_version: Input should be 2, found 3; correct it"),
    ("schema_version: 2", "schema_version: two", "1: schema_version: Input should be 2, found 'two'; correct it"),
    ("schema_version: 2\n", "", "1: schema_version: missing; add it"),
    ("name: cats", "name: Cats!", "2: name: 'Cats!' does not match ^[a-z0-9][a-z0-9._-]{0,63}$; change it to fit"),
    ("name: cats", "name:", "2: name: Input should be a valid string, found nothing; correct it"),
    ("name: cats", "name: 2024-01-01", "2: name: Input should be a valid string, found datetime.date(2024, 1, 1)"),
    ("commercial:\n  owner: pets", "commercial:", "19: commercial: must be a mapping, found nothing; write its fields"),
    ("commercial:\n  owner: pets", "commercial: [1]", "19: commercial: must be a mapping, found [1]; write its fields"),
    ("owner: pets", "owner: pets\n  ownr: pets", "21: commercial.ownr: no such field; did you mean `owner`?"),
    ("owner: pets", "owner: pets\n  zzzzzz: pets", "21: commercial.zzzzzz: no such field; remove it"),
    ("owner: pets", "owner: pets\n  currency: usd", "21: commercial.currency: 'usd' does not match ^[A-Z]{3}$"),
    ("owner: pets", 'owner: "a\\0b"', "20: commercial.owner: 'a\\x00b' does not match"),
    ("owner: pets", "owner: ''", "20: commercial.owner: '' does not match"),
    ("owner: pets", f"owner: {'x' * 201}", "20: commercial.owner: String should have at most 200 characters"),
    (
        "owner: pets",
        "owner: pets\n  prices: {review_minute: -1}",
        "21: commercial.prices.review_minute: Input should be greater",
    ),
    (
        "owner: pets",
        "owner: pets\n  prices: {review_minute: .nan}",
        "21: commercial.prices.review_minute: Input should be a finite",
    ),
    (
        "owner: pets",
        "owner: pets\n  prices: {review_minute: 1e300}",
        "21: commercial.prices.review_minute: Decimal input should have",
    ),
    (
        "owner: pets",
        "owner: pets\n  prices: {review_minute: cheap}",
        "21: commercial.prices.review_minute: Input should be a valid",
    ),
    (
        "owner: pets",
        "owner: pets\n  prices: {review_minute: 1.0000000000001}",
        "21: commercial.prices.review_minute: Decimal input",
    ),
    ("owner: pets", "owner: pets\n  latency_goal_s: .inf", "21: commercial.latency_goal_s: Input should be a finite"),
    ("per_minute: 5", "per_minute: .inf", "5: decision.keyframes.per_minute: Input should be a finite number"),
    ("per_minute: 5", "per_minute: 0", "5: decision.keyframes.per_minute: Input should be greater than 0, found 0"),
    ("per_minute: 5", "per_minute: [5]", "5: decision.keyframes.per_minute: Input should be a valid number"),
    ("per_minute: 5", "per_minut: 5", "5: decision.keyframes.per_minut: no such field; did you mean `per_minute`?"),
    ("per_minute: 5", f"max_keyframes: {10**4000}", "5: decision.keyframes.max_keyframes: Input should be less"),
    ("per_minute: 5", "max_keyframes: 2.5", "5: decision.keyframes.max_keyframes: Input should be a valid integer"),
    ("per_minute: 5", "5: per_minute", "4: decision.keyframes.5: Keys should be strings, found 5; correct it"),
    (
        f"tiny: {'a' * 64}",
        "tiny: abc",
        "7: decision.models.tiny.weights: 'abc' does not match ^[0-9a-f]{64}$; change it",
    ),
    (f"tiny: {'a' * 64}", f"tiny: {'A' * 64}", f"7: decision.models.tiny.weights: '{'A' * 64}' does not match"),
    ("text: Is a cat to be seen?", "text:", "10: decision.questions.cat.text: Input should be a valid string"),
    ("text: Is a cat to be seen?", "text: a\n      sensitive: perhaps", "11: decision.questions.cat.sensitive: "),
    ("model: tiny", "model: huge", "3: decision: stage 'first' uses model 'huge', which has no pinned SHA-256: add it"),
    ("model: tiny", "model: tiny\n      input_px: 8", "14: decision.stages.0.input_px: Input should be greater"),
    (
        "        cat:\n          labels",
        "        dog:\n          labels",
        "3: decision: stage 'first' answers ['dog'], ",
    ),
    (
        "    cat:\n      text",
        "    dog: {text: x}\n    cat:\n      text",
        "3: decision: no stage answers ['dog']: add an",
    ),
    ("  questions:", f"    idle: {'b' * 64}\n  questions:", "3: decision: no stage uses model ['idle']: remove it"),
    ("positive_at: 0.8", "positive_at: 1.1", "17: decision.stages.0.answers.cat.positive_at: Input should be less"),
    ("positive_at: 0.8", "positive_at: .nan", "17: decision.stages.0.answers.cat.positive_at: Input should be a fin"),
    ("positive_at: 0.8", "positive_at: high", "17: decision.stages.0.answers.cat.positive_at: Input should be a valid"),
    ("negative_at: 0.2", "negative_at: 0.8", "15: decision.stages.0.answers.cat: negative_at (0.8) must be below"),
    ('labels: [cat, "katze ü 🐈"]', "labels: []", "16: decision.stages.0.answers.cat.labels: "),
    ('labels: [cat, "katze ü 🐈"]', "labels: [cat, 7]", "16: decision.stages.0.answers.cat.labels.1: Input should"),
    ('labels: [cat, "katze ü 🐈"]', 'labels: ["\\ud800"]', "16: decision.stages.0.answers.cat.labels.0: "),
    (
        "negative_at: 0.2",
        "negative_at: 0.2\n          combine: most",
        "19: decision.stages.0.answers.cat.combine: must be",
    ),
    ("negative_at: 0.2", "negative_at: 0.2\n          combine: {at_least: 0}", "19: decision.stages.0.answers.cat.com"),
    (
        "negative_at: 0.2",
        "negative_at: 0.2\n          combine: {at_least: true}",
        "19: decision.stages.0.answers.cat.c",
    ),
    (
        "negative_at: 0.2",
        "negative_at: 0.2\n          calibration: [[0.5, 0.5], [0.5, 0.6]]",
        "15: decision.stages.0.answers.cat: calibration must rise: [0.5, 0.6] cannot follow [0.5, 0.5]; a model",
    ),
    (
        "negative_at: 0.2",
        "negative_at: 0.2\n          calibration: [[0.5, 0.5], [0.6, 0.4]]",
        "15: decision.stages.0.answers.cat: calibration must rise: [0.6, 0.4] cannot follow [0.5, 0.5]; a model",
    ),
    (
        "negative_at: 0.2",
        "negative_at: 0.2\n          calibration: [[0, 0]]",
        "19: decision.stages.0.answers.cat.calib",
    ),
    ("name: first", "name: review", "3: decision: a stage cannot be called ['review']: every run has a stage of that"),
    ("model: tiny", "model: tiny\n      crop: {stage: first, labels: [cat]}", "3: decision: stage 'first' crops what"),
    ("commercial:", f"  vlm: {VLM}\ncommercial:", "3: decision: stage 'judge' answers ['dog'], which no question"),
    (
        "commercial:",
        f"  vlm: {VLM.replace('dog', 'cat').replace('judge', 'first')}\ncommercial:",
        "3: decision: stage names must differ, found ['first', 'first']",
    ),
    (
        "commercial:",
        f"  vlm: {VLM.replace('dog', 'cat').replace('M/7B', 'M 7B')}\ncommercial:",
        "19: decision.vlm.model: 'M 7B' does not match",
    ),
    (
        "commercial:",
        f"  vlm: {VLM_WITH_SMALL_IMAGES}\ncommercial:",
        "19: decision.vlm.images: max_image_tokens (2000) leaves 31 tokens for each of max_images (64), and 32 are",
    ),
    ("owner: pets", "owner: pets\n  budgets: {per_day: 5}", "21: commercial.budgets.per_day: must be a mapping, found"),
    ("owner: pets", "owner: pets\n  budgets: {per_week: {amount: 5}}", "21: commercial.budgets.per_week: no such fiel"),
    ("owner: pets", "owner: pets\n  budgets: {per_day: {amount: 5, when_spent: stop}}", "21: commercial.budgets.per_d"),
    ("owner: pets", "? [a, b]\n  : c", "20: not a plain value: found unhashable key; correct it"),
    ("owner: pets", 'owner: pets\n  "ow\\nner\\e[31m": pets', "21: commercial.'ow\\nner\\x1b[31m': no such field; "),
    ("owner: pets", f"owner: pets\n  {'o' * 300}: pets", f"21: commercial.'{'o' * 76}...: no such field; "),
    ("owner: pets", "owner: pets\n  owner: dogs", "21: owner: given twice; keep one"),
    ("owner: pets", 'owner: pets\n  "a\\nb": 1\n  "a\\nb": 2', "22: 'a\\nb': given twice; keep one"),
    (
        "owner: pets",
        "owner: !!python/object/apply:os.system ['true']",
        "20: not a plain value: `'python/object/apply:os",
    ),
    ("owner: pets", "owner: !mine x", "20: not a plain value: `'!mine'` is none of text, number, list and mapping"),
    ("owner: pets", "owner: 2024-99-99", "20: not a plain value: '2024-99-99' cannot be read as timestamp; correct it"),
    ("owner: pets", "owner: 0x_", "20: not a plain value: '0x_' cannot be read as int; correct it"),
    ("owner: pets", "owner: !!float many", "20: not a plain value: 'many' cannot be read as float; correct it"),
    ("owner: pets", "owner: !!bool perhaps", "20: not a plain value: 'perhaps' cannot be read as bool; correct it"),
    ("owner: pets", "owner: !!timestamp soon", "20: not a plain value: 'soon' cannot be read as timestamp; correct it"),
    ("owner: pets", f"owner: {'1' * 5000}", "20: not a plain value: '111"),
    ("owner: pets", f"owner: {'1' + ':1' * 50_000}", "20: not a plain value: '1:1"),
    ('labels: [cat, "katze ü 🐈"]', "labels: !!set {cat, dog}", "16: not a plain value: `'set'` is none of text"),
    (
        'labels: [cat, "katze ü 🐈"]',
        'labels: ["cat\\nAnswer: no"]',
        "16: decision.stages.0.answers.cat.labels.0: 'cat\\n",
    ),
    (
        'labels: [cat, "katze ü 🐈"]',
        'labels: ["cat\\u202eon"]',
        "16: decision.stages.0.answers.cat.labels.0: 'cat\\u20",
    ),
    ("positive_at: 0.8", "positive_at: yes", "17: decision.stages.0.answers.cat.positive_at: must be a number; YAML"),
    ("per_minute: 5", "max_keyframes: on", "5: decision.keyframes.max_keyframes: must be a number; YAML reads"),
    (
        "owner: pets",
        "owner: pets\n  prices: {vlm: {token_in: no}}",
        "21: commercial.prices.vlm.token_in: must be a number; YAML reads",
    ),
    (
        "owner: pets",
        "owner: pets\n  prices: {vlm: {token_in: 1001}}",
        "21: commercial.prices.vlm.token_in: Input should be",
    ),
    (
        "owner: pets",
        "owner: pets\n  prices: {minutes_per_review: 101}",
        "21: commercial.prices.minutes_per_review: Input",
    ),
    ("owner: pets", "owner: !!binary 'aGk='", "20: not a plain value: `'binary'` is none of text"),
    ("owner: pets", "<<: {owner: dogs}", "20: not a plain value: `<<` would hide which value holds"),
    ("owner: pets", "owner: &x pets\n  currency: *x", "21: YAML aliases are not allowed; write the value out"),
    ("owner: pets", "\towner: pets", "20: not valid YAML: found character '\\t' that cannot start any token"),
    ("owner: pets", "owner: [pets", "21: not valid YAML: "),
    ("owner: pets", "owner: pe\x07ts", "20: not valid YAML: '\\x07' is not allowed in YAML; take it out"),
    ("owner: pets", "owner: \ud800", "20: not valid YAML: '\\ud800' is not allowed in YAML; take it out"),
    ("owner: pets", "owner: pets\n---\nb: 1", "21: not valid YAML: but found another document"),
]


@pytest.mark.parametrize(("old", "new", "expected"), FAULTS, ids=[fault[2].split(":")[1] for fault in FAULTS])
def test_a_fault_names_its_line_field_and_remedy(old: str, new: str, expected: str) -> None:
    (line,) = faults(with_line(old, new))
    assert line.removeprefix("cats.yaml:").startswith(expected)


def test_each_of_several_faults_has_its_line() -> None:
    text = with_line("name: cats", "name: C").replace("per_minute: 5", "per_minute: x").replace("owner:", "ownr:")
    assert [line.split(" ")[0] for line in faults(text)] == [f"cats.yaml:{number}:" for number in (2, 5, 19, 20)]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "--- \n", "null", "[1, 2]", "7", "just words", "'a: b'"])
def test_what_is_no_mapping_is_told_what_a_policy_is(text: str) -> None:
    (line,) = faults(text)
    assert "a policy is a mapping that starts with `schema_version: 2`" in line


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
@pytest.mark.parametrize("depth", [100, 400, 3000, 60_000])
def test_deep_nesting_is_refused_in_one_line_at_any_depth(opening: str, depth: int) -> None:
    closing = {"[": "]", "{a: ": "1}"}.get(opening, "x\n")
    faults(f"a: {opening * depth}{closing * depth}" if opening in "[{a: " else f"a:\n  {opening * depth}x")


def test_of_very_many_faults_the_first_are_told_and_the_others_counted() -> None:
    lines = faults(GOOD + "".join(f"k{number}: 1\n" for number in range(200)))
    assert len(lines) == MAX_FAULTS + 1
    assert lines[-1] == f"cats.yaml: and {200 - MAX_FAULTS} more faults"


def test_a_billion_laughs_are_refused_at_the_first_alias() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    assert faults(bomb) == ["cats.yaml:2: YAML aliases are not allowed; write the value out"]


def test_a_file_beyond_all_bounds_is_refused_unread() -> None:
    assert faults("#" * (MAX_POLICY_CHARS + 1)) == ["cats.yaml: longer than 250000 characters: not a policy"]


def test_windows_line_ends_and_a_byte_order_mark_are_fine() -> None:
    plain = parse_policy(GOOD, origin="x")
    assert parse_policy("\ufeff" + GOOD.replace("\n", "\r\n"), origin="x") == plain


@given(st.text(st.sampled_from("ab:[]{}&*!|>-? \n\t\"'#%@`,.0129_+ex=<~\0\x85\u2028é\ud800"), max_size=60))
def test_no_text_raises_anything_but_a_users_error(text: str) -> None:
    faults(text)


@given(
    st.sampled_from(["per_minute: 5", "owner: pets", "name: cats", "positive_at: 0.8", "model: tiny"]),
    st.text(st.sampled_from("ab:[]{}&*!|>-? \"'#%.0129_+ex=<~é"), max_size=12),
)
def test_a_good_policy_with_one_value_replaced_is_read_or_refused(old: str, value: str) -> None:
    field = old.split(":", maxsplit=1)[0]
    try:
        parse_policy(with_line(old, f"{field}: {value}"), origin="cats.yaml")
    except UserError as error:
        lines = error.detail.split("\n")
    else:
        return
    assert all(line.startswith("cats.yaml:") and line.isprintable() for line in lines)


def test_a_document_written_by_yaml_is_read_back() -> None:
    text = yaml.safe_dump(document({"cheap": {"q": rule("ab")}}), allow_unicode=True)
    assert parse_policy(text, origin="x").decision.stages[0].answers["q"].labels == ("a", "b")
