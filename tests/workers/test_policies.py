"""Which policy a worker judges by, while others activate new ones."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from pipeline.cascade.policy import Policy
from pipeline.errors import PermanentError, Reason
from pipeline.stores.ledger import Ledger
from pipeline.stores.schema import policy_versions
from tests.stores.test_policies import activate, version
from workers.policies import PolicyBook, stored_active_policy


def test_the_settings_policy_holds_until_one_is_activated_and_then_follows_each_activation(ledger: Ledger) -> None:
    seen: list[Policy] = []
    first, second = version(positive_at=0.7), version(positive_at=0.9)
    book = PolicyBook(ledger, version(), on_change=seen.append, max_age_s=0)
    assert book.active() == version()
    for policy in (first, second, first):
        activate(ledger, policy)
        assert book.active() == policy
        assert book.active() == policy
    assert seen == [first, second, first]
    assert stored_active_policy(ledger, version()) == first


def test_the_ledger_is_asked_once_in_a_while_and_not_for_every_video(ledger: Ledger) -> None:
    book = PolicyBook(ledger, version(), max_age_s=3600)
    assert book.active() == version()
    activate(ledger, version(positive_at=0.9))
    assert book.active() == version()


def test_a_new_price_is_picked_up_and_makes_nothing_undecided(ledger: Ledger) -> None:
    book = PolicyBook(ledger, version("old"), max_age_s=0)
    activate(ledger, version("new"))
    assert book.active().commercial.owner == "new"
    assert book.active().decision_hash == version("old").decision_hash
    assert book.named(version("old").decision_hash).commercial.owner == "new"


def test_a_message_gets_the_policy_that_it_names_whatever_is_active(ledger: Ledger) -> None:
    other = version(positive_at=0.5)
    ledger.remember_policy(other.name, other.decision_hash, other.document())
    book = PolicyBook(ledger, version(), max_age_s=0)
    assert book.named(other.decision_hash) == other
    assert book.active() == version()


def test_a_policy_that_nobody_recorded_or_nobody_can_read_is_the_messages_fault(ledger: Ledger) -> None:
    book = PolicyBook(ledger, version(), max_age_s=0)
    with pytest.raises(PermanentError, match="was ever recorded") as caught:
        book.named("f" * 64)
    assert caught.value.reason is Reason.UNKNOWN_POLICY
    activate(ledger, version(positive_at=0.9))
    with ledger.database.begin() as connection:
        connection.execute(sa.update(policy_versions).values(document={"schema_version": 99}))
    with pytest.raises(PermanentError, match="not readable by this version") as caught:
        book.active()
    assert caught.value.reason is Reason.UNKNOWN_POLICY
