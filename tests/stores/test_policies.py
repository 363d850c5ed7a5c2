"""Versions of policies and their activations, against a real PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.cascade.policy import Policy
from pipeline.errors import Reason, UserError
from pipeline.runs import Activation
from pipeline.stores.ledger import Ledger
from tests.cascade.fakes import document, rule


def version(owner: str = "team", positive_at: float = 0.8) -> Policy:
    text = document({"cheap": {"q": rule("a", positive_at)}})
    text["commercial"]["owner"] = owner
    return Policy.model_validate(text)


def activate(ledger: Ledger, policy: Policy, why: str = "because") -> Activation:
    return ledger.activate_policy(policy.name, policy.decision_hash, policy.document(), who="ada", why=why)


def active(ledger: Ledger) -> Policy:
    found = ledger.active_policy()
    assert found is not None
    return Policy.model_validate(found[1])


def test_nothing_is_active_until_something_is_activated(ledger: Ledger) -> None:
    assert ledger.active_policy() is None
    ledger.remember_policy("test", version().decision_hash, version().document())
    assert ledger.active_policy() is None


def test_the_newest_activation_holds_and_all_of_them_stay_with_who_and_why(ledger: Ledger) -> None:
    first, second = version(), version(positive_at=0.9)
    activate(ledger, first, "the first")
    activate(ledger, second, "fewer false alarms")
    activate(ledger, first, "rolled back")
    assert active(ledger) == first
    found = ledger.activations()
    assert [line.why for line in found] == ["rolled back", "fewer false alarms", "the first"]
    assert [line.document_hash for line in found] == [p.document_hash for p in (first, second, first)]
    assert {line.who for line in found} == {"ada"}
    assert found[0].at >= found[2].at
    assert len(ledger.activations(limit=2)) == 2


def test_an_older_commercial_part_can_be_activated_again(ledger: Ledger) -> None:
    cheap, dear = version("cheap"), version("dear")
    assert cheap.decision_hash == dear.decision_hash
    for policy in (cheap, dear, cheap):
        activate(ledger, policy)
        assert active(ledger) == policy
    ledger.remember_policy("test", dear.decision_hash, dear.document())  # a worker that starts with its own file
    assert ledger.policy(cheap.decision_hash) == cheap.document()


def test_a_version_is_found_by_the_first_characters_of_either_hash(ledger: Ledger) -> None:
    one, other = version("one"), version("other")
    assert ledger.policy_version(one.document_hash) is None
    activate(ledger, one)
    activate(ledger, other)
    for policy in (one, other):
        assert ledger.policy_version(policy.document_hash[:12]) == policy.document()
    assert ledger.policy_version(one.decision_hash[:12]) == other.document()  # the newest of that hash
    for unknown in ("ffffffffffff", "%%%%%%"):
        assert ledger.policy_version(unknown) is None
    with pytest.raises(UserError, match="too short") as caught:
        ledger.policy_version("abc")
    assert caught.value.reason is Reason.BAD_INPUT


def test_what_was_activated_is_in_the_audit(ledger: Ledger) -> None:
    import sqlalchemy as sa

    from pipeline.stores.schema import audit

    done = activate(ledger, version(), "why not")
    with ledger.database.begin() as connection:
        line: Any = connection.execute(sa.select(audit).where(audit.c.action == "activate_policy")).one()
    assert (line.actor, line.subject) == ("ada", "policy:test")
    assert (line.detail["document_hash"], line.detail["why"]) == (done.document_hash, "why not")


def test_a_document_is_the_same_after_it_was_stored(ledger: Ledger) -> None:
    policy = version()
    activate(ledger, policy)
    assert active(ledger).document_hash == policy.document_hash
    assert active(ledger).decision_hash == policy.decision_hash
