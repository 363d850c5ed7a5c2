"""Which of the messages at hand is begun next: a share for each lane, and turns for tenants. Pure.

Nobody can ask SQS for one tenant's messages. So a worker looks further into its lane than it can work on, keeps what
it saw (hidden, for a while) in a waiting room, and begins what is fairest: of the lane whose turn it is, the oldest
message of the tenant who has the least in flight here. One tenant's thousands thus hold nobody else up.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar

_UPLOAD_KEY = re.compile(r"uploads/([^/]+)/.")
_GROUP = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
"""What SQS takes as a message group: letters, digits, punctuation, at most 128."""


class Waiter(Protocol):
    """A message that was received and is not begun yet."""

    @property
    def tenant(self) -> str: ...

    @property
    def hidden_until_s(self) -> float:
        """When others may receive it again, on the clock of the caller."""
        ...

    @property
    def sent_at(self) -> datetime: ...

    @property
    def size_bytes(self) -> int: ...


W = TypeVar("W", bound=Waiter)


def tenant_of(key: str) -> str:
    """Whose video lies at `key`: the tenant in the key of an upload, else the first folder, else nobody's name.

    Good as a message group too: what SQS would not take is replaced by its hash.
    """
    upload = _UPLOAD_KEY.match(key)
    name = upload.group(1) if upload else key.rpartition("/")[0].split("/", 1)[0]
    if _GROUP.fullmatch(name):
        return name
    return hashlib.sha256(name.encode(errors="replace")).hexdigest() if name else "-"


@dataclass(slots=True)
class _LaneRoom(Generic[W]):
    share: float
    credit: float = 0.0
    tenants: dict[str, list[tuple[datetime, int, W]]] = field(default_factory=dict)  # heaps, the oldest first
    count: int = 0


class WaitingRoom(Generic[W]):
    """What was received and not begun, lane by lane in the order of their precedence.

    `shares[i]` is the least part of all starts that lane i gets while it has something waiting; the first lane's is
    what the others leave. Not thread-safe.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        if not shares or any(not 0 <= share <= 1 for share in shares) or sum(shares[1:]) >= 1:
            raise ValueError(f"lanes cannot have the shares {list(shares)}: those after the first must leave some")
        self._lanes = [_LaneRoom[W](share) for share in shares]
        self._size_bytes = 0
        self._number = itertools.count()

    def __len__(self) -> int:
        return sum(lane.count for lane in self._lanes)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[W]:
        return (waiter for room in self._lanes for waiters in room.tenants.values() for *_, waiter in waiters)

    def waiting(self, lane: int) -> int:
        return self._lanes[lane].count

    def add(self, lane: int, waiter: W) -> None:
        room = self._lanes[lane]
        heapq.heappush(room.tenants.setdefault(waiter.tenant, []), (waiter.sent_at, next(self._number), waiter))
        room.count += 1
        self._size_bytes += waiter.size_bytes

    def is_due(self, lane: int) -> bool:
        """Whether the lane's turn has come even though lanes before it have work: it should be looked into."""
        return self._lanes[lane].credit >= 1

    def begin(self, flying: Mapping[str, int], *, most_per_tenant: int) -> W | None:
        """The next to begin, taken out; None where there is none, or only of tenants with `most_per_tenant` flying."""
        for number in self._turns():
            waiter = self._take(self._lanes[number], flying, most_per_tenant)
            if waiter is not None:
                self._settle_credits(number)
                return waiter
        return None

    def drop_expired(self, now_s: float) -> list[W]:
        """Take out what others may receive again by now."""
        return self._remove(lambda waiter: waiter.hidden_until_s <= now_s)

    def take_all(self) -> list[W]:
        return self._remove(lambda _: True)

    def _turns(self) -> list[int]:
        """Lanes whose share is due, then all by precedence."""
        numbers = range(len(self._lanes))
        due = [n for n in numbers if n and self._lanes[n].credit >= 1 and self._lanes[n].count]
        return [*due, *(n for n in numbers if n not in due)]

    def _settle_credits(self, begun: int) -> None:
        """Every start lends the other lanes a part of one; nobody saves up more than one."""
        for number, lane in enumerate(self._lanes):
            if number == begun:
                lane.credit = max(0.0, lane.credit - 1)
            elif number:
                lane.credit = min(1.0, lane.credit + lane.share / (1 - lane.share))

    def _take(self, room: _LaneRoom[W], flying: Mapping[str, int], most_per_tenant: int) -> W | None:
        able = (tenant for tenant in room.tenants if flying.get(tenant, 0) < most_per_tenant)
        # `min` keeps to the dict's order, in which whoever was served last stands last.
        tenant = min(able, key=lambda name: flying.get(name, 0), default=None)
        if tenant is None:
            return None
        waiters = room.tenants.pop(tenant)
        *_, waiter = heapq.heappop(waiters)
        if waiters:
            room.tenants[tenant] = waiters
        room.count -= 1
        self._size_bytes -= waiter.size_bytes
        return waiter

    def _remove(self, unwanted: Callable[[W], bool]) -> list[W]:
        removed: list[W] = []
        for room in self._lanes:
            for tenant, waiters in list(room.tenants.items()):
                gone = [waiter for *_, waiter in waiters if unwanted(waiter)]
                if not gone:
                    continue
                kept = [entry for entry in waiters if not unwanted(entry[-1])]
                heapq.heapify(kept)
                if kept:
                    room.tenants[tenant] = kept
                else:
                    del room.tenants[tenant]
                room.count -= len(gone)
                removed += gone
        self._size_bytes -= sum(waiter.size_bytes for waiter in removed)
        return removed
