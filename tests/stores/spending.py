"""A worker of its own process that claims runs, reserves the worst case, spends part of it, and settles.

    python -m tests.stores.spending URL SEED COUNT TENANT_CAP DAY_CAP

Prints one JSON line a run: the bucket (a tenant's) and what was spent, null where the budget was.
"""

from __future__ import annotations

import json
import random
import sys

from pipeline.budgets import Caps, Reservation
from pipeline.media import ObjectRef
from pipeline.runs import Claimed, Lane
from pipeline.stores.ledger import Ledger

WORST_NANO = 100


def spend(url: str, seed: int, count: int, tenant_cap: int, day_cap: int) -> None:
    ledger = Ledger.connect(url)
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    caps = Caps("p", "USD", per_tenant_day_nano=tenant_cap, per_day_nano=day_cap)
    order = [(bucket, number) for number in range(count) for bucket in ("poor", "rich")]
    for bucket, number in order:
        ref = ObjectRef(bucket, f"{seed}-{number}", etag="e", size_bytes=1)
        claim = ledger.claim(
            ref,
            policy="p",
            decision_hash="h",
            lane=Lane.UPLOADS,
            worker=str(seed),
            lease_s=60,
            trace_id="t",
            event_at=None,
        )
        assert isinstance(claim, Claimed)
        held = ledger.reserve(claim.run_id, claim.fence, caps=caps, amount_nano=WORST_NANO)
        actual = None
        if isinstance(held, Reservation):
            actual = chance.randint(0, WORST_NANO)
            ledger.settle(held, actual)
        sys.stdout.write(json.dumps([bucket, actual]) + "\n")
        sys.stdout.flush()
    ledger.close()


if __name__ == "__main__":
    spend(sys.argv[1], *map(int, sys.argv[2:]))
