"""Values of the cost ledger: what one stage took for one run, and sums of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage took. `money_nano` is in nano-units of the run's currency.

    `bytes` were read from storage or sent to an engine; `images` were shown to the model, crops each counted;
    `tokens_in` counts the cached ones too. The yardsticks stand in one row of a run: what a VLM on its every frame, or
    every keyframe, would have cost.
    """

    stage: str
    model: str | None = None
    cpu_s: float = 0.0
    device_s: float = 0.0
    money_nano: int = 0
    images: int = 0
    bytes: int = 0
    requests: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    every_frame_nano: int = 0
    every_keyframe_nano: int = 0


class CostsBy(StrEnum):
    """What sums of costs are grouped by; days are UTC days of the commit."""

    TENANT = "tenant"
    POLICY = "policy"
    DAY = "day"
    STAGE = "stage"


@dataclass(frozen=True, slots=True)
class CostSum:
    """All that a group of stage costs adds up to; `group` is None for videos without a tenant.

    `runs` counts the runs that were committed with any cost.
    """

    group: str | None
    currency: str
    runs: int
    total: StageCost
