"""Which policy judges what: uploads by the active one, backfills by the one that their messages name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pydantic import ValidationError

from pipeline.cascade.policy import Policy
from pipeline.errors import PermanentError, Reason
from pipeline.stores.ledger import Ledger
from workers.logs import get_logger

MAX_AGE_S = 3.0
"""How long after an activation a worker may still judge uploads by the one before."""


def _nothing(_: Policy) -> None:
    """Nobody wants to know."""


class PolicyBook:
    """The policies of one worker, read from the ledger when they are asked for. Threads may share it.

    Until one was activated, `initial` is active: the one that the settings name.
    """

    def __init__(
        self,
        ledger: Ledger,
        initial: Policy,
        *,
        on_change: Callable[[Policy], None] = _nothing,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        self._ledger = ledger
        self._active = initial
        self._on_change = on_change
        self._max_age_s = max_age_s
        self._looked_at_s: float | None = None
        self._lock = threading.Lock()
        self._named: dict[str, Policy] = {}

    def active(self) -> Policy:
        """The policy that judges uploads claimed now, at most `max_age_s` late.

        Raises PermanentError(UNKNOWN_POLICY) where this version cannot read it, and what the ledger raises.
        """
        with self._lock:
            if self._looked_at_s is None or time.monotonic() - self._looked_at_s >= self._max_age_s:
                self._look()
                self._looked_at_s = time.monotonic()
            return self._active

    def named(self, decision_hash: str) -> Policy:
        """The policy with this decision hash. Raises PermanentError(UNKNOWN_POLICY) where none was ever recorded."""
        active = self.active()
        if decision_hash == active.decision_hash:
            return active
        with self._lock:
            known = self._named.get(decision_hash)
        if known is None:
            known = recorded_policy(self._ledger, decision_hash)
            with self._lock:
                self._named[decision_hash] = known
        return known

    def _look(self) -> None:
        found = self._ledger.active_policy()
        if found is None:
            return
        activation, document = found
        if activation.document_hash == self._active.document_hash:
            return
        self._active = _policy(document, activation.decision_hash)
        self._named.clear()  # commercial parts may have changed
        get_logger().info(
            "policy_activated",
            policy=activation.policy,
            decision_hash=activation.decision_hash,
            document_hash=activation.document_hash,
            who=activation.who,
        )
        self._on_change(self._active)


def recorded_policy(ledger: Ledger, decision_hash: str) -> Policy:
    """The policy with this decision hash. Raises PermanentError(UNKNOWN_POLICY) where none is there or readable."""
    document = ledger.policy(decision_hash)
    if document is None:
        raise PermanentError(Reason.UNKNOWN_POLICY, f"no policy with decision hash {decision_hash} was ever recorded")
    return _policy(document, decision_hash)


def stored_active_policy(ledger: Ledger, initial: Policy) -> Policy:
    """The active policy; `initial` where none was ever activated."""
    return PolicyBook(ledger, initial).active()


def _policy(document: dict[str, object], decision_hash: str) -> Policy:
    try:
        return Policy.model_validate(document)
    except ValidationError as error:
        detail = (
            f"the policy with decision hash {decision_hash} is not readable by this version: "
            f"{error.error_count()} faults"
        )
        raise PermanentError(Reason.UNKNOWN_POLICY, detail) from None
