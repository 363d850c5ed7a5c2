"""What the parts of a policy document are made of: the strict base and the constrained values."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number; YAML reads yes, no, on and off as true or false")  # noqa: TRY004 - foreign data
    return value


Number = BeforeValidator(_no_truth)
"""Marks a field as a number, which true and false are in Python and YAML, and not here."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Question = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False), Number]
Label = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{1,200}$")]
"""A model's label, on one line: it is shown to people and told to a VLM, so nothing that breaks or turns a line."""
Words = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$")]
"""Any text but NUL, which PostgreSQL's JSONB cannot keep."""
Price = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=18, decimal_places=12, allow_inf_nan=False), Number]
"""In the policy's currency; twelve places, because one token costs less than a millionth."""
UnitPrice = Annotated[Price, Field(le=1000)]
"""Of what a video takes thousands of: with this bound no video costs more than the ledger's 64 bits hold."""


class Part(BaseModel):
    """A mapping of the document: no unknown fields, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
