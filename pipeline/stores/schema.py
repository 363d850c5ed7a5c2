"""The ledger's tables. `pipeline.stores.migrations` creates them; a test holds the two to be the same.

All times are the database's `now()`. Money is in nano-units of the row's currency.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _uuid(name: str, *constraints: sa.ForeignKey, primary_key: bool = False, nullable: bool = False) -> sa.Column[UUID]:
    return sa.Column(name, pg.UUID(as_uuid=True), *constraints, primary_key=primary_key, nullable=nullable)


def _time(name: str, *, nullable: bool = False, now: bool = False) -> sa.Column[datetime]:
    default = sa.text("now()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


tenants = sa.Table(
    "tenants",
    metadata,
    _uuid("id", primary_key=True),
    _text("name"),
    _time("created_at", now=True),
    sa.UniqueConstraint("name"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("public_id", sa.Text, primary_key=True),
    _uuid("tenant_id", sa.ForeignKey("tenants.id")),
    sa.Column("secret_sha256", sa.LargeBinary, nullable=False),
    _time("created_at", now=True),
    _time("revoked_at", nullable=True),
)

policies = sa.Table(
    "policies",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("decision_hash", sa.Text, primary_key=True),
    sa.Column("document", pg.JSONB, nullable=False),
    _time("first_seen_at", now=True),
)

policy_versions = sa.Table(
    "policy_versions",
    metadata,
    sa.Column("document_hash", sa.Text, primary_key=True),
    _text("name"),
    _text("decision_hash"),
    sa.Column("document", pg.JSONB, nullable=False),
    _time("first_seen_at", now=True),
)

activations = sa.Table(
    "activations",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    _text("document_hash"),
    _text("who"),
    _text("why"),
    _time("at", now=True),
    sa.ForeignKeyConstraint(["document_hash"], ["policy_versions.document_hash"]),
)

uploads = sa.Table(
    "uploads",
    metadata,
    _uuid("id", primary_key=True),
    _uuid("tenant_id", sa.ForeignKey("tenants.id")),
    _text("bucket"),
    _text("key"),
    _text("filename"),
    _text("content_type", nullable=True),
    sa.Column("max_bytes", sa.BigInteger, nullable=False),
    _text("trace_id"),
    _time("created_at", now=True),
    _time("expires_at"),
    sa.UniqueConstraint("bucket", "key"),
    sa.Index("ix_uploads_tenant_id_created_at", "tenant_id", "created_at"),
)

videos = sa.Table(
    "videos",
    metadata,
    _uuid("id", primary_key=True),
    _text("bucket"),
    _text("key"),
    _text("version"),
    sa.Column("size_bytes", sa.BigInteger),
    _uuid("upload_id", sa.ForeignKey("uploads.id"), nullable=True),
    _time("uploaded_at", nullable=True),
    _time("created_at", now=True),
    sa.UniqueConstraint("bucket", "key", "version"),
    sa.Index("ix_videos_upload_id", "upload_id", postgresql_where=sa.text("upload_id IS NOT NULL")),
)

OPEN_STATES = "state IN ('queued', 'processing', 'escalated', 'deferred')"

runs = sa.Table(
    "runs",
    metadata,
    _uuid("id", primary_key=True),
    _uuid("video_id", sa.ForeignKey("videos.id")),
    _text("policy"),
    _text("decision_hash"),
    _text("state"),
    _text("lane"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("faults", sa.Integer, nullable=False, server_default="0"),
    sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
    _time("lease_until", nullable=True),
    _text("worker", nullable=True),
    _time("due_at", nullable=True),
    _text("trace_id"),
    _time("enqueued_at", nullable=True),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    _time("decided_at", nullable=True),
    _text("reason", nullable=True),
    _text("detail", nullable=True),
    _text("result_key", nullable=True),
    sa.Column("money_nano", sa.BigInteger, nullable=False, server_default="0"),
    _text("currency", nullable=True),
    sa.Column("cpu_s", sa.Double, nullable=False, server_default="0"),
    sa.Column("coverage", sa.Double),
    sa.Column("warnings", pg.ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.UniqueConstraint("video_id", "decision_hash"),
    sa.CheckConstraint(
        "state IN ('queued', 'processing', 'decided', 'escalated', 'deferred', 'in_review', 'rejected',"
        " 'failed', 'superseded')",
        name="ck_runs_state",
    ),
    sa.Index("ix_runs_open", "state", "updated_at", postgresql_where=sa.text(OPEN_STATES)),
    sa.Index("ix_runs_failed", "updated_at", postgresql_where=sa.text("state = 'failed'")),
    sa.Index("ix_runs_created_at", "created_at"),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    _uuid("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("question", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    _text("answer"),
    sa.Column("score", sa.Double, nullable=False),
    _text("stage"),
    _text("model", nullable=True),
    _text("weights_sha256", nullable=True),
    _text("owner"),
    sa.Column("evidence", pg.ARRAY(sa.Integer), nullable=False),
    _text("reason", nullable=True),
    _time("created_at", now=True),
    _time("answered_at", nullable=True),
    sa.CheckConstraint("answer IN ('positive', 'negative', 'review', 'open')", name="ck_verdicts_answer"),
    sa.Index(
        "ix_verdicts_waiting",
        "created_at",
        "run_id",
        postgresql_where=sa.text("answer = 'review' AND answered_at IS NULL"),
    ),
)

stage_costs = sa.Table(
    "stage_costs",
    metadata,
    _uuid("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("fence", sa.BigInteger, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    _time("at", now=True),
    _uuid("tenant_id", nullable=True),
    _text("policy"),
    _text("currency"),
    _text("stage"),
    _text("model", nullable=True),
    sa.Column("cpu_s", sa.Double, nullable=False),
    sa.Column("device_s", sa.Double, nullable=False, server_default="0"),
    sa.Column("money_nano", sa.BigInteger, nullable=False),
    sa.Column("images", sa.Integer, nullable=False),
    *(
        sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        for name in ("bytes", "requests", "tokens_in", "tokens_cached", "tokens_out")
    ),
    sa.Column("every_frame_nano", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("every_keyframe_nano", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("ix_stage_costs_at", "at"),
)

budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("policy", sa.Text, primary_key=True),
    sa.Column("currency", sa.Text, primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("spent_nano", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("reserved_nano", sa.BigInteger, nullable=False, server_default="0"),
    sa.CheckConstraint("spent_nano >= 0 AND reserved_nano >= 0", name="ck_budgets_not_negative"),
)

reservations = sa.Table(
    "reservations",
    metadata,
    _uuid("id", primary_key=True),
    _uuid("run_id", sa.ForeignKey("runs.id")),
    sa.Column("fence", sa.BigInteger, nullable=False),
    _text("policy"),
    _text("currency"),
    sa.Column("day", sa.Date, nullable=False),
    _text("subject"),
    sa.Column("amount_nano", sa.BigInteger, nullable=False),
    sa.Column("actual_nano", sa.BigInteger),
    _time("created_at", now=True),
    _time("settled_at", nullable=True),
    _time("expired_at", nullable=True),
    sa.Index("ix_reservations_run_id", "run_id"),
    sa.Index(
        "ix_reservations_held",
        "policy",
        "currency",
        postgresql_where=sa.text("settled_at IS NULL AND expired_at IS NULL"),
    ),
)

answers = sa.Table(
    "answers",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    _uuid("run_id"),
    _text("question"),
    _text("answer"),
    _text("who"),
    _text("why"),
    _time("at", now=True),
    sa.ForeignKeyConstraint(["run_id", "question"], ["verdicts.run_id", "verdicts.question"]),
    sa.CheckConstraint("answer IN ('positive', 'negative')", name="ck_answers_answer"),
    sa.Index("ix_answers_run_id_question_id", "run_id", "question", "id"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    _time("at", now=True),
    _text("actor"),
    _text("action"),
    _text("subject"),
    sa.Column("detail", pg.JSONB, nullable=False, server_default="{}"),
    sa.Index("ix_audit_subject_id", "subject", "id"),
)
