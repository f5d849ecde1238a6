"""The schema of quota."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables, readable_by_tenants, run_script, tenant_table

revision = "0003_quota"
down_revision = "0002_registry"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "quota")
    run_script(op, _TABLES)
    tenant_table(op, "quota", "tenant", "SELECT")
    tenant_table(op, "quota", "project", "SELECT, INSERT, UPDATE")
    tenant_table(op, "quota", "api_key", "SELECT, INSERT, UPDATE")
    tenant_table(op, "quota", "virtual_pool", "SELECT")
    tenant_table(op, "quota", "limit_alert", "SELECT")
    readable_by_tenants(op, "quota", "pool_view")


def downgrade() -> None:
    op.execute("DROP SCHEMA quota CASCADE")


_TABLES = """
CREATE TABLE quota.tenant (
    tenant_id uuid PRIMARY KEY,
    name text NOT NULL,
    timezone text NOT NULL,
    currency text NOT NULL,
    state text NOT NULL,
    labels jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL
);
CREATE UNIQUE INDEX tenant_name ON quota.tenant (name) WHERE state <> 'deleted';

CREATE TABLE quota.project (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    labels jsonb NOT NULL,
    deleted boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL
);
CREATE UNIQUE INDEX project_name ON quota.project (tenant_id, name) WHERE NOT deleted;

CREATE TABLE quota.api_key (
    id uuid PRIMARY KEY,
    tenant_id uuid,
    project_id uuid,
    name text NOT NULL,
    role text NOT NULL,
    secret_hash bytea NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL
);
CREATE INDEX api_key_tenant ON quota.api_key (tenant_id, id);

CREATE TABLE quota.virtual_pool (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    name text NOT NULL,
    limits jsonb NOT NULL,
    policy text NOT NULL,
    labels jsonb NOT NULL,
    deleted boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL
);
CREATE UNIQUE INDEX virtual_pool_name ON quota.virtual_pool (tenant_id, name) WHERE NOT deleted;
CREATE INDEX virtual_pool_pool ON quota.virtual_pool (pool_id);

CREATE TABLE quota.limit_alert (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    virtual_pool_id uuid NOT NULL,
    resource text NOT NULL,
    flavor text,
    used bigint NOT NULL,
    hard bigint NOT NULL,
    missing bigint NOT NULL,
    opened_at timestamptz NOT NULL,
    closed_at timestamptz
);
CREATE UNIQUE INDEX limit_alert_open ON quota.limit_alert (virtual_pool_id, resource, coalesce(flavor, ''))
    WHERE closed_at IS NULL;

CREATE TABLE quota.pool_view (
    pool_id uuid PRIMARY KEY,
    body jsonb NOT NULL,
    deleted boolean NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE quota.capacity_view (
    pool_id uuid PRIMARY KEY,
    body jsonb NOT NULL,
    generation bigint NOT NULL
);
"""
