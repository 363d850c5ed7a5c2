"""Policy text → `Policy`, with faults that name the line, the field and the remedy. Pure: no files."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.cascade.commercial import BudgetPart, BudgetsPart, CommercialPart, PricesPart, VlmPricesPart
from pipeline.cascade.policy import (
    SCHEMA_VERSION,
    DecisionPart,
    KeyframesPart,
    ModelPin,
    Policy,
    QuestionPart,
    StagePart,
)
from pipeline.cascade.rules import AnswerRule, AtLeast, CropPart
from pipeline.cascade.vlm_part import ImagesPart, SamplingPart, VlmAnswer, VlmPart
from pipeline.errors import Reason, UserError

MAX_POLICY_CHARS = 250_000
MAX_DEPTH = 32
"""Of brackets within brackets: each costs PyYAML a look at all that are open."""
MAX_NUMBER_CHARS = 4300
"""YAML 1.1 has numbers to the base of 60, which take the square of their length to read."""
MAX_FAULTS = 50
"""What one would read of them."""
_YAML = "tag:yaml.org,2002:"
_NUMBERS = {_YAML + kind for kind in ("int", "float")}
_PLAIN = {_YAML + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp")}
"""Of the others a set is worst: it has no order, so that its policy has another hash in every process."""
_PARTS: tuple[type[BaseModel], ...] = (
    *(Policy, DecisionPart, KeyframesPart, ModelPin, QuestionPart, StagePart, AnswerRule, AtLeast, CropPart),
    *(VlmPart, SamplingPart, ImagesPart, VlmAnswer),
    *(CommercialPart, PricesPart, VlmPricesPart, BudgetsPart, BudgetPart),
)
_KNOWN_FIELDS = sorted({field for part in _PARTS for field in part.model_fields})


def parse_policy(text: str, *, origin: str) -> Policy:
    """The policy written in `text` (YAML).

    Raises UserError(BAD_POLICY) with one line per fault: `origin:line: field: what is wrong; what to do`.
    """
    if len(text) > MAX_POLICY_CHARS:
        raise UserError(Reason.BAD_POLICY, f"{origin}: longer than {MAX_POLICY_CHARS} characters: not a policy")
    root = _compose(text, origin)
    lines = _lines(root)
    try:
        return Policy.model_validate(_StrictLoader.value(root))
    except ValidationError as error:
        found = [details for details in error.errors() if not _is_echo(details)]
        faults = [_fault(origin, lines, details) for details in found[:MAX_FAULTS]]
        more = [f"{origin}: and {len(found) - MAX_FAULTS} more faults"] if len(found) > MAX_FAULTS else []
        raise UserError(Reason.BAD_POLICY, "\n".join([*faults, *more])) from None
    except _DuplicateKeyError as error:
        raise UserError(
            Reason.BAD_POLICY, f"{origin}:{error.line}: {_field(error.key)}: given twice; keep one"
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = _one_line(error.problem or str(error))
        raise UserError(Reason.BAD_POLICY, f"{origin}:{line}: not a plain value: {problem}; correct it") from None
    except RecursionError:
        raise UserError(Reason.BAD_POLICY, f"{origin}: nested too deeply: not a policy") from None


_OPENING = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


class _DuplicateKeyError(Exception):
    def __init__(self, key: str, line: int) -> None:
        super().__init__(key)
        self.key = key
        self.line = line


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, which YAML would silently let win, and numbers that take for ever."""

    @classmethod
    def value(cls, root: yaml.Node) -> Any:
        loader = cls("")
        try:
            return loader.construct_document(root)
        finally:
            loader.dispose()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag not in _PLAIN:
            problem = f"`{_shown(node.tag.removeprefix(_YAML))}` is none of text, number, list and mapping"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARS:
            raise yaml.constructor.ConstructorError(None, None, f"{_shown(node.value)} is no number", node.start_mark)
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):  # PyYAML's own: `2024-99-99`, `0x_`
            problem = f"{_shown(node.value)} cannot be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            if key.tag == _YAML + "merge":
                problem = "`<<` would hide which value holds; write the fields out"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _DuplicateKeyError(key.value, key.start_mark.line + 1)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _compose(text: str, origin: str) -> yaml.Node:
    depth = 0
    try:
        for token in yaml.scan(text, yaml.SafeLoader):
            line = token.start_mark.line + 1
            depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
            if depth > MAX_DEPTH:
                raise UserError(Reason.BAD_POLICY, f"{origin}:{line}: nested too deeply: not a policy")
            if isinstance(token, yaml.AliasToken):
                raise UserError(
                    Reason.BAD_POLICY, f"{origin}:{line}: YAML aliases are not allowed; write the value out"
                )
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = _one_line(error.problem or str(error))
        raise UserError(Reason.BAD_POLICY, f"{origin}:{line}: not valid YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"{text[error.position]!a} is not allowed in YAML; take it out"
        raise UserError(Reason.BAD_POLICY, f"{origin}:{line}: not valid YAML: {problem}") from None
    except RecursionError:
        raise UserError(Reason.BAD_POLICY, f"{origin}: nested too deeply: not a policy") from None
    if not isinstance(root, yaml.MappingNode):
        raise UserError(
            Reason.BAD_POLICY, f"{origin}:1: a policy is a mapping that starts with `schema_version: {SCHEMA_VERSION}`"
        )
    return root


def _lines(root: yaml.Node) -> Mapping[tuple[str | int, ...], int]:
    """Where each field stands: path → line, counted from 1."""
    lines: dict[tuple[str | int, ...], int] = {(): root.start_mark.line + 1}

    def walk(node: yaml.Node, path: tuple[str | int, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    lines[(*path, key.value)] = key.start_mark.line + 1
                    walk(value, (*path, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines[(*path, index)] = value.start_mark.line + 1
                walk(value, (*path, index))

    walk(root, ())
    return lines


def _fault(origin: str, lines: Mapping[tuple[str | int, ...], int], details: ErrorDetails) -> str:
    path = tuple(part for part in details["loc"] if part != "[key]")
    known = path
    while known not in lines:
        known = known[:-1]
    field = ".".join(_field(part) for part in path) or "policy"
    return f"{origin}:{lines[known]}: {field}: {_explain(details)}"


def _is_echo(details: ErrorDetails) -> bool:
    """Whether this only repeats that items were faulty: pydantic then calls the list too short as well."""
    return details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]


def _explain(details: ErrorDetails) -> str:
    match details["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(details["loc"][-1]), _KNOWN_FIELDS, n=1)
            return "no such field; " + (f"did you mean `{near[0]}`?" if near else "remove it")
        case "missing":
            return "missing; add it"
        case "value_error":
            return str(details["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a mapping, found {_shown(details['input'])}; write its fields below it"
        case "string_pattern_mismatch":
            return f"{_shown(details['input'])} does not match {details['ctx']['pattern']}; change it to fit"
        case _:
            return f"{details['msg']}, found {_shown(details['input'])}; correct it"


def _field(part: str | int) -> str:
    text = str(part)
    return text if text.isprintable() and len(text) <= 80 else _shown(text)


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value.model_dump() if isinstance(value, BaseModel) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _one_line(text: str) -> str:
    return " ".join(text.split())
