"""Sums of what was spent, by tenant, policy, day or stage, from the stages' costs."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from pipeline.costs import CostsBy, CostSum, StageCost
from pipeline.stores.database import Database
from pipeline.stores.schema import stage_costs, tenants

_SUMMED = tuple(field.name for field in fields(StageCost) if field.name not in {"stage", "model"})
_GROUPS: dict[CostsBy, sa.ColumnElement[Any]] = {
    CostsBy.TENANT: tenants.c.name,
    CostsBy.POLICY: stage_costs.c.policy,
    CostsBy.DAY: sa.cast(sa.cast(sa.func.timezone("UTC", stage_costs.c.at), sa.Date), sa.Text),
    CostsBy.STAGE: stage_costs.c.stage,
}


class Costs:
    """The part of the ledger that adds costs up."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def costs(
        self, by: CostsBy, *, since: datetime | None = None, until: datetime | None = None, policy: str | None = None
    ) -> list[CostSum]:
        """What was committed from `since` (inclusive) to `until` (exclusive), one sum a group and currency.

        Sums are exact: money is added as whole nano-units. An index on the time serves it.
        """
        group = _GROUPS[by].label("group")
        sums = [sa.func.sum(stage_costs.c[name]).label(name) for name in _SUMMED]
        runs = sa.func.count(stage_costs.c.run_id.distinct()).label("runs")
        wanted = (
            sa.select(group, stage_costs.c.currency, runs, *sums)
            .select_from(stage_costs.outerjoin(tenants, tenants.c.id == stage_costs.c.tenant_id))
            .group_by(group, stage_costs.c.currency)
            .order_by(group.nulls_last(), stage_costs.c.currency)
        )
        if since is not None:
            wanted = wanted.where(stage_costs.c.at >= since)
        if until is not None:
            wanted = wanted.where(stage_costs.c.at < until)
        if policy is not None:
            wanted = wanted.where(stage_costs.c.policy == policy)
        with self.database.begin() as connection:
            return [_sum(row, by) for row in connection.execute(wanted).all()]


def _sum(row: sa.Row[Any], by: CostsBy) -> CostSum:
    values = row._mapping  # noqa: SLF001 - SQLAlchemy's public name for it
    counted: dict[str, Any] = {
        name: float(values[name]) if name.endswith("_s") else int(values[name]) for name in _SUMMED
    }
    group = values["group"]
    return CostSum(group, row.currency, row.runs, StageCost(group if by is CostsBy.STAGE else "all", **counted))
