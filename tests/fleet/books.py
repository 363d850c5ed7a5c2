"""What the ledger says, by plain SQL: the checks must not share the code that they check."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

FINAL = ("decided", "in_review", "rejected", "failed", "superseded")

_RUNS = """
SELECT v.key, r.id::text AS run_id, r.state, r.reason, r.fence, r.attempts, r.faults, r.result_key, r.cpu_s,
       v.created_at, v.uploaded_at, r.updated_at, r.decided_at, count(d.question) AS verdicts,
       array_agg(d.question || '=' || d.answer ORDER BY d.question) FILTER (WHERE d.question IS NOT NULL) AS answers,
       (SELECT array_agg(DISTINCT c.fence) FROM stage_costs c WHERE c.run_id = r.id) AS cost_fences
FROM runs r JOIN videos v ON v.id = r.video_id LEFT JOIN verdicts d ON d.run_id = r.id
GROUP BY r.id, v.id
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run with everything that was committed for it."""

    key: str
    run_id: str
    state: str
    reason: str | None
    fence: int
    attempts: int
    faults: int
    result_key: str | None
    cpu_s: float
    created_at: datetime
    uploaded_at: datetime | None
    updated_at: datetime
    decided_at: datetime | None
    verdicts: int
    answers: tuple[str, ...]
    cost_fences: tuple[int, ...]

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class Books:
    """A reader of one ledger that survives restarts of its database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    def close(self) -> None:
        with self._lock:
            self._forget()

    def rows(self, statement: str, *values: object) -> Sequence[Any]:
        """All rows. Raises psycopg.Error while the database cannot be reached. Threads may share it."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(
                        self._url, autocommit=True, connect_timeout=3, row_factory=namedtuple_row
                    )
                return self._connection.execute(statement.encode(), values).fetchall()
            except psycopg.Error:
                self._forget()
                raise

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def runs(self) -> list[Run]:
        return [
            Run(**{**row._asdict(), "answers": tuple(row.answers or ()), "cost_fences": tuple(row.cost_fences or ())})
            for row in self.rows(_RUNS)
        ]

    def settled(self, prefix: str = "") -> int:
        """How many runs have ended, of videos whose key begins with `prefix`; -1 while nobody can say."""
        try:
            if not prefix:
                return int(self.rows("SELECT count(*) FROM runs WHERE state = ANY(%s)", list(FINAL))[0].count)
            statement = (
                "SELECT count(*) FROM runs r JOIN videos v ON v.id = r.video_id "
                "WHERE r.state = ANY(%s) AND starts_with(v.key, %s)"
            )
            return int(self.rows(statement, list(FINAL), prefix)[0].count)
        except psycopg.Error:
            return -1

    def states(self) -> dict[str, int]:
        return {row.state: row.count for row in self.rows("SELECT state, count(*) FROM runs GROUP BY state")}
