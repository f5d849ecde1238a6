"""The schema of registry."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables, readable_by_tenants, run_script

revision = "0002_registry"
down_revision = "0001_foundation"
branch_labels = None
depends_on = None

# Pools of all tenants are visible to everybody, a dedicated pool and its figures to its tenant alone; nobody but operators writes.
_DDL = """
CREATE TABLE registry.pool (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    priority integer NOT NULL,
    tenant_id uuid,
    spec jsonb NOT NULL,
    unreachable_after_seconds integer NOT NULL,
    shard integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL,
    CONSTRAINT pool_name UNIQUE (name)
);
ALTER TABLE registry.pool ENABLE ROW LEVEL SECURITY;
ALTER TABLE registry.pool FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON registry.pool FOR SELECT TO millpond_registry_tenant
    USING (tenant_id IS NULL OR tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
CREATE POLICY system ON registry.pool TO millpond_registry_system USING (true) WITH CHECK (true);

CREATE TABLE registry.flavor (
    name text PRIMARY KEY,
    kind text NOT NULL,
    selector jsonb NOT NULL,
    profiles text[] NOT NULL,
    builtin boolean NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE registry.join_token (
    id uuid PRIMARY KEY,
    secret_hash bytea NOT NULL,
    pool_id uuid,
    expires_at timestamptz NOT NULL,
    max_uses integer,
    uses integer NOT NULL DEFAULT 0,
    labels jsonb NOT NULL,
    revoked boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL,
    CONSTRAINT join_token_secret UNIQUE (secret_hash),
    CONSTRAINT join_token_uses CHECK (max_uses IS NULL OR uses <= max_uses)
);

CREATE TABLE registry.node (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    name text NOT NULL,
    public_key bytea NOT NULL,
    state text NOT NULL,
    state_since timestamptz NOT NULL,
    cordon_reasons text[] NOT NULL,
    drain jsonb,
    move_to uuid,
    incarnation bigint NOT NULL DEFAULT 0,
    boot_id text,
    agent_version text,
    labels jsonb NOT NULL,
    inventory jsonb NOT NULL,
    inventory_sequence bigint,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL
);
CREATE UNIQUE INDEX node_key ON registry.node (public_key) WHERE state <> 'removed';
CREATE UNIQUE INDEX node_name ON registry.node (pool_id, name) WHERE state <> 'removed';

CREATE TABLE registry.heartbeat (
    node_id uuid PRIMARY KEY REFERENCES registry.node (id) ON DELETE CASCADE,
    at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE registry.device (
    id uuid PRIMARY KEY,
    node_id uuid NOT NULL REFERENCES registry.node (id) ON DELETE CASCADE,
    identity text NOT NULL,
    flavor text NOT NULL,
    health text NOT NULL,
    health_reason text,
    reported boolean NOT NULL,
    report jsonb NOT NULL,
    last_seen_at timestamptz NOT NULL,
    CONSTRAINT device_identity UNIQUE (node_id, identity)
);

CREATE TABLE registry.challenge (
    nonce text PRIMARY KEY,
    node_id uuid NOT NULL REFERENCES registry.node (id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
CREATE INDEX challenge_node ON registry.challenge (node_id);

CREATE TABLE registry.condition (
    node_id uuid NOT NULL REFERENCES registry.node (id) ON DELETE CASCADE,
    target text NOT NULL,
    name text NOT NULL,
    evidence text NOT NULL,
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,
    PRIMARY KEY (node_id, target, name)
);

CREATE TABLE registry.allocation (
    id uuid PRIMARY KEY,
    node_id uuid NOT NULL,
    cpu_milli bigint NOT NULL,
    memory_mib bigint NOT NULL,
    devices jsonb NOT NULL,
    released boolean NOT NULL,
    generation bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX allocation_live ON registry.allocation (node_id) WHERE NOT released;
CREATE INDEX allocation_released ON registry.allocation (updated_at) WHERE released;

CREATE TABLE registry.tally_mark (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id uuid NOT NULL
);
CREATE TABLE registry.node_tally (
    node_id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    tally jsonb NOT NULL
);
CREATE INDEX node_tally_pool ON registry.node_tally (pool_id);
CREATE TABLE registry.capacity (
    pool_id uuid PRIMARY KEY REFERENCES registry.pool (id) ON DELETE CASCADE,
    tally jsonb NOT NULL,
    as_of timestamptz NOT NULL DEFAULT clock_timestamp(),
    recounted_at timestamptz,
    generation bigint NOT NULL
);
ALTER TABLE registry.capacity ENABLE ROW LEVEL SECURITY;
ALTER TABLE registry.capacity FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON registry.capacity FOR SELECT TO millpond_registry_tenant
    USING (EXISTS (SELECT 1 FROM registry.pool p WHERE p.id = pool_id));
CREATE POLICY system ON registry.capacity TO millpond_registry_system USING (true) WITH CHECK (true);
"""


def upgrade() -> None:
    create_kernel_tables(op, "registry")
    run_script(op, _DDL)
    for table in ("pool", "flavor", "capacity"):
        readable_by_tenants(op, "registry", table)


def downgrade() -> None:
    op.execute("DROP SCHEMA registry CASCADE")
