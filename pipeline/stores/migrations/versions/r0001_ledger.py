"""The ledger's first tables.

A migration is history: it is written out here and never follows later changes of `pipeline.stores.schema`.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_DDL = """
CREATE TABLE audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail JSONB DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE INDEX ix_audit_subject_id ON audit (subject, id);

CREATE TABLE policies (
    name TEXT NOT NULL,
    decision_hash TEXT NOT NULL,
    document JSONB NOT NULL,
    first_seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_policies PRIMARY KEY (name, decision_hash)
);

CREATE TABLE tenants (
    id UUID NOT NULL,
    name TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_tenants PRIMARY KEY (id),
    CONSTRAINT uq_tenants_name UNIQUE (name)
);

CREATE TABLE api_keys (
    public_id TEXT NOT NULL,
    tenant_id UUID NOT NULL,
    secret_sha256 BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    revoked_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_api_keys PRIMARY KEY (public_id),
    CONSTRAINT fk_api_keys_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE TABLE uploads (
    id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    filename TEXT NOT NULL,
    content_type TEXT,
    max_bytes BIGINT NOT NULL,
    trace_id TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_uploads PRIMARY KEY (id),
    CONSTRAINT uq_uploads_bucket_key UNIQUE (bucket, key),
    CONSTRAINT fk_uploads_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_uploads_tenant_id_created_at ON uploads (tenant_id, created_at);

CREATE TABLE videos (
    id UUID NOT NULL,
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    version TEXT NOT NULL,
    size_bytes BIGINT,
    upload_id UUID,
    uploaded_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_videos PRIMARY KEY (id),
    CONSTRAINT uq_videos_bucket_key_version UNIQUE (bucket, key, version),
    CONSTRAINT fk_videos_upload_id FOREIGN KEY(upload_id) REFERENCES uploads (id)
);
CREATE INDEX ix_videos_upload_id ON videos (upload_id)
    WHERE upload_id IS NOT NULL;

CREATE TABLE runs (
    id UUID NOT NULL,
    video_id UUID NOT NULL,
    policy TEXT NOT NULL,
    decision_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    lane TEXT NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    faults INTEGER DEFAULT 0 NOT NULL,
    fence BIGINT DEFAULT 0 NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE,
    worker TEXT,
    due_at TIMESTAMP WITH TIME ZONE,
    trace_id TEXT NOT NULL,
    enqueued_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE,
    reason TEXT,
    detail TEXT,
    result_key TEXT,
    money_nano BIGINT DEFAULT 0 NOT NULL,
    currency TEXT,
    cpu_s DOUBLE PRECISION DEFAULT 0 NOT NULL,
    coverage DOUBLE PRECISION,
    warnings TEXT[] DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT uq_runs_video_id_decision_hash UNIQUE (video_id, decision_hash),
    CONSTRAINT ck_runs_state CHECK (state IN (
        'queued', 'processing', 'decided', 'escalated', 'deferred', 'in_review', 'rejected', 'failed', 'superseded'
    )),
    CONSTRAINT fk_runs_video_id FOREIGN KEY(video_id) REFERENCES videos (id)
);
CREATE INDEX ix_runs_created_at ON runs (created_at);
CREATE INDEX ix_runs_failed ON runs (updated_at)
    WHERE state = 'failed';
CREATE INDEX ix_runs_open ON runs (state, updated_at)
    WHERE state IN ('queued', 'processing', 'escalated', 'deferred');

CREATE TABLE stage_costs (
    run_id UUID NOT NULL,
    fence BIGINT NOT NULL,
    position INTEGER NOT NULL,
    stage TEXT NOT NULL,
    model TEXT NOT NULL,
    cpu_s DOUBLE PRECISION NOT NULL,
    money_nano BIGINT NOT NULL,
    images INTEGER NOT NULL,
    CONSTRAINT pk_stage_costs PRIMARY KEY (run_id, fence, position),
    CONSTRAINT fk_stage_costs_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);

CREATE TABLE verdicts (
    run_id UUID NOT NULL,
    question TEXT NOT NULL,
    position INTEGER NOT NULL,
    answer TEXT NOT NULL,
    score DOUBLE PRECISION NOT NULL,
    stage TEXT NOT NULL,
    model TEXT,
    weights_sha256 TEXT,
    owner TEXT NOT NULL,
    evidence INTEGER[] NOT NULL,
    reason TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    answered_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_verdicts PRIMARY KEY (run_id, question),
    CONSTRAINT ck_verdicts_answer CHECK (answer IN ('positive', 'negative', 'review')),
    CONSTRAINT fk_verdicts_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_verdicts_waiting ON verdicts (created_at, run_id)
    WHERE answer = 'review' AND answered_at IS NULL;

CREATE TABLE answers (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    run_id UUID NOT NULL,
    question TEXT NOT NULL,
    answer TEXT NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_answers PRIMARY KEY (id),
    CONSTRAINT fk_answers_run_id FOREIGN KEY(run_id, question) REFERENCES verdicts (run_id, question),
    CONSTRAINT ck_answers_answer CHECK (answer IN ('positive', 'negative'))
);
CREATE INDEX ix_answers_run_id_question_id ON answers (run_id, question, id);
"""


def upgrade() -> None:
    op.execute(_DDL)
