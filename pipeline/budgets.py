"""Budgets: money is reserved before an expensive stage, settled after it, and never more than the policy allows. Pure.

    reserve (the worst case) ──▶ the stage ──▶ settle (what it cost)

What is reserved counts as spent until it is settled, so that workers side by side cannot overspend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID


class BudgetScope(StrEnum):
    """What a budget is for; the field's name in the policy. Days are UTC days."""

    PER_VIDEO = "per_video"
    PER_TENANT_DAY = "per_tenant_day"
    PER_DAY = "per_day"


@dataclass(frozen=True, slots=True)
class Caps:
    """A policy's budgets in nano-units of its currency; None is no cap."""

    policy: str
    currency: str
    per_video_nano: int | None = None
    per_tenant_day_nano: int | None = None
    per_day_nano: int | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money held for a run. It is given back by itself when the run's lease, under the same fence, has ended."""

    id: UUID
    amount_nano: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Nothing was reserved: the budget of `scope` would be overspent. A day's is whole again in `resets_in_s`."""

    scope: BudgetScope
    cap_nano: int
    spent_nano: int
    reserved_nano: int
    wanted_nano: int
    resets_in_s: float | None

    @property
    def is_held_only(self) -> bool:
        """Whether there is room but for what others hold, most of which comes back: worth another try soon."""
        return self.spent_nano + self.wanted_nano <= self.cap_nano

    @property
    def comes_back_in_s(self) -> float | None:
        """When there is room for what was wanted again; None where a whole budget is less than that: never."""
        return self.resets_in_s if self.wanted_nano <= self.cap_nano else None


class BudgetBook(Protocol):
    """Keeps the budgets. `pipeline.stores.budgets` does it in PostgreSQL, safe for any number of workers."""

    def reserve(self, run_id: UUID, fence: int, *, caps: Caps, amount_nano: int) -> Reservation | Exhausted:
        """Hold `amount_nano` for the run, for its tenant and for the day, all or nothing.

        Raises LeaseLostError where the run is not ours any more.
        """
        ...

    def settle(self, reservation: Reservation, actual_nano: int) -> None:
        """Exchange what was held for what was spent; a second time changes nothing."""
        ...
