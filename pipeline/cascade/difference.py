"""What differs between two policies, field by field. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.cascade.policy import Policy


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs: its dotted name, and its value before and after; None where it is not set."""

    field: str
    before: object
    after: object

    @property
    def is_decisive(self) -> bool:
        """Whether it can change an answer, and so makes everything decided under the old policy undecided."""
        return self.field.startswith("decision.")


def differences(before: Policy, after: Policy) -> list[Change]:
    """Every field that differs, in the documents' order. Stages are compared by their names."""
    old, new = dict(_flat(before.document())), dict(_flat(after.document()))
    return [
        Change(field, old.get(field), new.get(field)) for field in {**old, **new} if old.get(field) != new.get(field)
    ]


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
        yield f"{path} (order)", [item.get("name") for item in value]
        for item in value:
            yield from _flat({key: inner for key, inner in item.items() if key != "name"}, f"{path}.{item.get('name')}")
    else:
        yield path, value
