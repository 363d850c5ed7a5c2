"""What the parts of a policy document are made of: the strict base and the constrained values."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Question = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Words = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$")]
"""Any text but NUL, which PostgreSQL's JSONB cannot keep."""
Price = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=18, decimal_places=12, allow_inf_nan=False)]
"""In the policy's currency; twelve places, because one token costs less than a millionth."""


class Part(BaseModel):
    """A mapping of the document: no unknown fields, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
