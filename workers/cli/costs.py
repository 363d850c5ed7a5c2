"""`videosieve costs`: what was spent, on whom and on what, beside what a VLM on everything would have cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import click
from rich.table import Table

from pipeline.costs import CostsBy, CostSum
from workers.bootstrap import open_ledger
from workers.cli.console import shown, stdout
from workers.settings import load_settings

SHOWN_DIGITS = 6


@click.command()
@click.option("--by", type=click.Choice([by.value for by in CostsBy]), default="day", show_default=True)
@click.option("--since", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]), help="UTC.  [default: 30 days ago]")
@click.option("--until", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]), help="UTC, not included.")
@click.option("--policy", "policy_name", help="Only runs of the policies of this name.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout, money in whole nano-units.")
def costs(by: str, since: datetime | None, until: datetime | None, policy_name: str | None, as_json: bool) -> None:
    """Add up what was spent, and what a VLM on every frame or keyframe would have cost at the same prices."""
    first = since.replace(tzinfo=UTC) if since else datetime.now(UTC) - timedelta(days=30)
    last = until.replace(tzinfo=UTC) if until else None
    with open_ledger(load_settings()) as ledger:
        sums = ledger.costs(CostsBy(by), since=first, until=last, policy=policy_name)
    if as_json:
        for found in sums:
            total = {name: value for name, value in asdict(found.total).items() if name not in {"stage", "model"}}
            line = {"schema_version": 1, by: found.group, "currency": found.currency, "runs": found.runs}
            click.echo(json.dumps(line | total))
        return
    stdout().print(_table(by, sums))


def _table(by: str, sums: Sequence[CostSum]) -> Table:
    table = Table(
        by, "runs", "money", "every frame", "every keyframe", "CPU s", "device s", "images", "tokens (cached)"
    )
    for found in sums:
        total = found.total
        table.add_row(
            "–" if found.group is None else shown(found.group),
            str(found.runs),
            money(total.money_nano, found.currency),
            money(total.every_frame_nano, found.currency),
            money(total.every_keyframe_nano, found.currency),
            f"{total.cpu_s:.1f}",
            f"{total.device_s:.1f}",
            str(total.images),
            f"{total.tokens_in + total.tokens_out} ({total.tokens_cached})",
        )
    return table


def money(nano: int, currency: str) -> str:
    """For people: exact to a millionth."""
    return f"{Decimal(nano) / 10**9:.{SHOWN_DIGITS}f} {currency}"
