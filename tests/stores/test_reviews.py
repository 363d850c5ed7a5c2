"""People's answers, tenants and uploads, against a real PostgreSQL."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from pipeline.errors import Reason, UserError
from pipeline.media import ObjectRef
from pipeline.runs import Commit, Tenant
from pipeline.stores.ledger import Ledger
from pipeline.stores.schema import audit, metadata
from pipeline.verdict import Answer, RunState
from tests.stores.test_claims import REF, claimed, outcome, verdict, view


def in_review(ledger: Ledger, ref: ObjectRef = REF) -> UUID:
    run = claimed(ledger, ref)
    verdicts = (verdict("face"), verdict("nudity", Answer.REVIEW), verdict("weapon", Answer.REVIEW))
    ledger.commit(run.run_id, run.fence, Commit(RunState.IN_REVIEW, outcome(*verdicts), result_key="r.json"))
    return run.run_id


def upload(ledger: Ledger, tenant: Tenant, key: str = "in/1.mp4") -> UUID:
    return ledger.create_upload(
        tenant.id,
        bucket="bucket",
        key=key,
        filename="holiday ü.mp4",
        content_type="video/mp4",
        max_bytes=1000,
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        trace_id="upload-trace",
    )


def test_what_waits_for_a_person_is_listed_oldest_first(ledger: Ledger) -> None:
    runs = [in_review(ledger, ObjectRef("bucket", f"k{number}", etag="e")) for number in range(2)]
    items = ledger.reviews()
    assert [(item.run_id, item.question) for item in items] == [
        (runs[0], "nudity"),
        (runs[0], "weapon"),
        (runs[1], "nudity"),
        (runs[1], "weapon"),
    ]
    assert items[0].video == "s3://bucket/k0"
    assert [item.run_id for item in ledger.reviews(limit=1, offset=2)] == [runs[1]]


def test_the_last_answer_decides_the_run(ledger: Ledger) -> None:
    run_id = in_review(ledger)
    assert view(ledger, run_id).decided_at is None
    first = ledger.answer(run_id, "nudity", answer=Answer.POSITIVE, who="ann", why="seen at 0:07")
    assert (first.machine_answer, first.answer) == (Answer.REVIEW, Answer.POSITIVE)
    assert view(ledger, run_id).state is RunState.IN_REVIEW
    ledger.answer(run_id, "weapon", answer=Answer.NEGATIVE, who="ann", why="a toy")
    found = view(ledger, run_id)
    assert found.state is RunState.DECIDED
    assert found.decided_at is not None
    assert [(v.question, v.answer, v.answered_by) for v in found.verdicts] == [
        ("face", Answer.NEGATIVE, None),
        ("nudity", Answer.POSITIVE, "ann"),
        ("weapon", Answer.NEGATIVE, "ann"),
    ]
    assert ledger.reviews() == []


def test_any_verdict_can_be_overridden_and_its_history_stays(ledger: Ledger) -> None:
    run_id = in_review(ledger)
    ledger.answer(run_id, "face", answer=Answer.POSITIVE, who="ann", why="a face")
    detail = ledger.answer(run_id, "face", answer=Answer.NEGATIVE, who="bob", why="a mask")
    assert [(past.answer, past.who, past.why) for past in detail.history] == [
        (Answer.POSITIVE, "ann", "a face"),
        (Answer.NEGATIVE, "bob", "a mask"),
    ]
    assert (detail.machine_answer, detail.answer) == (Answer.NEGATIVE, Answer.NEGATIVE)
    assert detail == ledger.review(run_id, "face")
    assert view(ledger, run_id).state is RunState.IN_REVIEW
    with ledger.database.begin() as connection:
        lines = connection.execute(sa.select(audit).where(audit.c.action == "answer")).all()
    assert [(line.actor, line.detail["instead_of"]) for line in lines] == [("ann", "negative"), ("bob", "positive")]


def test_an_answer_to_nothing_or_without_a_name_is_refused(ledger: Ledger) -> None:
    run_id = in_review(ledger)
    for wrong_run, question, answer, who in [
        (uuid4(), "face", Answer.POSITIVE, "ann"),
        (run_id, "unknown", Answer.POSITIVE, "ann"),
        (run_id, "face", Answer.REVIEW, "ann"),
        (run_id, "face", Answer.POSITIVE, " "),
    ]:
        with pytest.raises(UserError) as caught:
            ledger.answer(wrong_run, question, answer=answer, who=who, why="")
        assert caught.value.reason is Reason.BAD_INPUT
    assert ledger.review(run_id, "unknown") is None


def test_a_tenant_sees_and_answers_only_its_own(ledger: Ledger) -> None:
    (ours, _), (theirs, _) = ledger.add_tenant("ours"), ledger.add_tenant("theirs")
    upload(ledger, ours)
    run_id = in_review(ledger, ObjectRef("bucket", "in/1.mp4", etag="e"))
    assert len(ledger.reviews(ours.id)) == 2
    assert ledger.reviews(theirs.id) == []
    assert ledger.run(run_id, ours.id) is not None
    assert ledger.run(run_id, theirs.id) is None
    assert ledger.runs(tenant_id=theirs.id) == []
    assert ledger.review(run_id, "nudity", theirs.id) is None
    with pytest.raises(UserError):
        ledger.answer(run_id, "nudity", answer=Answer.POSITIVE, who="x", why="", tenant_id=theirs.id)
    ledger.answer(run_id, "nudity", answer=Answer.POSITIVE, who="x", why="", tenant_id=ours.id)


def test_an_api_key_opens_its_tenant_and_no_other_text_does(ledger: Ledger) -> None:
    tenant, key = ledger.add_tenant("acme")
    _, other_key = ledger.add_tenant("other")
    assert key.startswith("vs_")
    assert ledger.authenticate(key) == tenant
    public_id, secret = key.split("_", 2)[1:]
    other_secret = other_key.split("_", 2)[2]
    wrong = [
        "",
        "vs_",
        f"vs_{public_id}_",
        f"vs_{public_id}_{secret}x",
        f"vs_{public_id}_{other_secret}",
        f"vs_0000_{secret}",
        f"xx_{public_id}_{secret}",
        f"vs_{public_id}\0_{secret}",
        key + "ü",
    ]
    assert [ledger.authenticate(text) for text in wrong] == [None] * len(wrong)


def test_keys_can_be_added_and_revoked(ledger: Ledger) -> None:
    tenant, old = ledger.add_tenant("acme")
    new = ledger.add_key("acme")
    ledger.revoke_key(old.split("_")[1])
    assert (ledger.authenticate(old), ledger.authenticate(new)) == (None, tenant)
    with pytest.raises(UserError):
        ledger.revoke_key(old.split("_")[1])
    with pytest.raises(UserError):
        ledger.add_key("nobody")


def test_no_secret_of_a_key_is_in_the_database(ledger: Ledger, database_url: str) -> None:
    _, key = ledger.add_tenant("acme")
    secret = key.split("_", 2)[2]
    with contextlib.closing(psycopg.connect(database_url)) as connection:
        for table in metadata.tables:
            rows = sql.SQL("SELECT t::text FROM {} AS t").format(sql.Identifier(table))
            for (row,) in connection.execute(rows):
                assert secret not in row
                assert secret.encode().hex() not in row


def test_a_tenants_name_is_taken_once(ledger: Ledger) -> None:
    ledger.add_tenant("b")
    ledger.add_tenant("a")
    for name in ("a", " "):
        with pytest.raises(UserError) as caught:
            ledger.add_tenant(name)
        assert caught.value.reason is Reason.BAD_INPUT
    assert [tenant.name for tenant in ledger.tenants()] == ["a", "b"]


def test_an_uploads_status_follows_its_run(ledger: Ledger) -> None:
    tenant, _ = ledger.add_tenant("acme")
    stranger, _ = ledger.add_tenant("stranger")
    upload_id = upload(ledger, tenant)
    status = ledger.upload(tenant.id, upload_id)
    assert status is not None
    assert (status.state, status.run_id, status.filename) == ("awaiting_upload", None, "holiday ü.mp4")
    assert ledger.upload(stranger.id, upload_id) is None
    assert ledger.upload(tenant.id, uuid4()) is None
    run = claimed(ledger, ObjectRef("bucket", "in/1.mp4", etag="e"), event_at=datetime.now(UTC))
    assert (run.trace_id, run.tenant) == ("upload-trace", "acme")
    assert run.uploaded_at is not None
    status = ledger.upload(tenant.id, upload_id)
    assert status is not None
    assert (status.state, status.run_id) == ("processing", run.run_id)
    ledger.commit(run.run_id, run.fence, Commit(RunState.REJECTED, reason=Reason.NOT_A_VIDEO, detail="text"))
    status = ledger.upload(tenant.id, upload_id)
    assert status is not None
    assert (status.state, status.reason, status.detail) == ("rejected", "not_a_video", "text")


def test_a_policys_newest_document_is_remembered_by_its_decision_hash(ledger: Ledger) -> None:
    ledger.remember_policy("moderation", "h1", {"prices": "old"})
    ledger.remember_policy("moderation", "h1", {"prices": "new"})
    ledger.remember_policy("moderation", "h2", {"prices": "other"})
    assert ledger.policy("h1") == {"prices": "new"}
    assert ledger.policy("h2") == {"prices": "other"}
    assert ledger.policy("h3") is None


def test_an_audit_line_is_kept(ledger: Ledger) -> None:
    ledger.audit("ops", "pause", "lane:backfill", {"why": "incident"})
    with ledger.database.begin() as connection:
        line = connection.execute(sa.select(audit)).one()
    assert (line.actor, line.action, line.subject, line.detail["why"]) == ("ops", "pause", "lane:backfill", "incident")
