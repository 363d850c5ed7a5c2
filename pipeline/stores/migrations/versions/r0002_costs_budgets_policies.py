"""Costs of every stage with all they took, budgets with reservations, versions of policies and their activations."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_DDL = """
ALTER TABLE verdicts DROP CONSTRAINT ck_verdicts_answer;
ALTER TABLE verdicts ADD CONSTRAINT ck_verdicts_answer CHECK (answer IN ('positive', 'negative', 'review', 'open'));

ALTER TABLE stage_costs
    ADD COLUMN at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ADD COLUMN tenant_id UUID,
    ADD COLUMN policy TEXT,
    ADD COLUMN currency TEXT,
    ADD COLUMN device_s DOUBLE PRECISION DEFAULT 0 NOT NULL,
    ADD COLUMN bytes BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN requests BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN tokens_in BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN tokens_cached BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN tokens_out BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN every_frame_nano BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN every_keyframe_nano BIGINT DEFAULT 0 NOT NULL,
    ALTER COLUMN model DROP NOT NULL;
UPDATE stage_costs SET
    at = runs.updated_at, policy = runs.policy, currency = coalesce(runs.currency, 'USD'), tenant_id = uploads.tenant_id
FROM runs JOIN videos ON videos.id = runs.video_id LEFT JOIN uploads ON uploads.id = videos.upload_id
WHERE runs.id = stage_costs.run_id;
INSERT INTO stage_costs (run_id, fence, position, at, tenant_id, policy, currency, stage, cpu_s, money_nano, images)
SELECT runs.id, runs.fence, -1, runs.updated_at, uploads.tenant_id, runs.policy, coalesce(runs.currency, 'USD'),
    'keyframes', greatest(0, runs.cpu_s - coalesce(known.cpu_s, 0)), runs.money_nano - coalesce(known.money_nano, 0), 0
FROM runs JOIN videos ON videos.id = runs.video_id LEFT JOIN uploads ON uploads.id = videos.upload_id
LEFT JOIN (
    SELECT run_id, sum(cpu_s) AS cpu_s, sum(money_nano)::bigint AS money_nano FROM stage_costs GROUP BY run_id
) AS known ON known.run_id = runs.id
WHERE runs.money_nano <> coalesce(known.money_nano, 0);
ALTER TABLE stage_costs ALTER COLUMN policy SET NOT NULL, ALTER COLUMN currency SET NOT NULL;
CREATE INDEX ix_stage_costs_at ON stage_costs (at);

CREATE TABLE budgets (
    policy TEXT NOT NULL,
    currency TEXT NOT NULL,
    day DATE NOT NULL,
    subject TEXT NOT NULL,
    spent_nano BIGINT DEFAULT 0 NOT NULL,
    reserved_nano BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_budgets PRIMARY KEY (policy, currency, day, subject),
    CONSTRAINT ck_budgets_not_negative CHECK (spent_nano >= 0 AND reserved_nano >= 0)
);

CREATE TABLE reservations (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    fence BIGINT NOT NULL,
    policy TEXT NOT NULL,
    currency TEXT NOT NULL,
    day DATE NOT NULL,
    subject TEXT NOT NULL,
    amount_nano BIGINT NOT NULL,
    actual_nano BIGINT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    settled_at TIMESTAMP WITH TIME ZONE,
    expired_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_reservations PRIMARY KEY (id),
    CONSTRAINT fk_reservations_run_id FOREIGN KEY (run_id) REFERENCES runs (id)
);
CREATE INDEX ix_reservations_run_id ON reservations (run_id);
CREATE INDEX ix_reservations_held ON reservations (policy, currency) WHERE settled_at IS NULL AND expired_at IS NULL;

CREATE TABLE policy_versions (
    document_hash TEXT NOT NULL,
    name TEXT NOT NULL,
    decision_hash TEXT NOT NULL,
    document JSONB NOT NULL,
    first_seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_policy_versions PRIMARY KEY (document_hash)
);

CREATE TABLE activations (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    document_hash TEXT NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_activations PRIMARY KEY (id),
    CONSTRAINT fk_activations_document_hash FOREIGN KEY (document_hash) REFERENCES policy_versions (document_hash)
);
"""


def upgrade() -> None:
    op.execute(_DDL)
