"""The schema of the autoscaler."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables, run_script

revision = "0017_autoscaler"
down_revision = "0016_scheduler_gangs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "autoscaler")
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP SCHEMA autoscaler CASCADE")


_TABLES = """
CREATE TABLE autoscaler.scaling_policy (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    name text NOT NULL,
    flavor text NOT NULL,
    template jsonb NOT NULL,
    rules jsonb NOT NULL,
    enabled boolean NOT NULL,
    deleted boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL
);
CREATE UNIQUE INDEX scaling_policy_flavor ON autoscaler.scaling_policy (pool_id, flavor) WHERE NOT deleted;
CREATE UNIQUE INDEX scaling_policy_name ON autoscaler.scaling_policy (name) WHERE NOT deleted;

CREATE TABLE autoscaler.policy_state (
    policy_id uuid PRIMARY KEY REFERENCES autoscaler.scaling_policy (id),
    low_since timestamptz,
    watched_at timestamptz,
    last_out_at timestamptz,
    last_in_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    stock_out_until timestamptz,
    orders integer NOT NULL DEFAULT 0,
    told text NOT NULL DEFAULT '',
    CONSTRAINT policy_state_counts CHECK (failures >= 0 AND orders >= 0)
);

CREATE TABLE autoscaler.scaling_decision (
    id uuid PRIMARY KEY,
    policy_id uuid NOT NULL,
    policy text NOT NULL,
    pool_id uuid NOT NULL,
    flavor text NOT NULL,
    decided_at timestamptz NOT NULL,
    rule text NOT NULL,
    action text NOT NULL,
    nodes integer NOT NULL,
    code text NOT NULL,
    reason text NOT NULL,
    load_ratio double precision,
    rules jsonb NOT NULL,
    template jsonb NOT NULL,
    inputs jsonb NOT NULL
);
CREATE INDEX scaling_decision_policy ON autoscaler.scaling_decision (policy_id, id);

CREATE TABLE autoscaler.node_order (
    id uuid PRIMARY KEY,
    policy_id uuid NOT NULL REFERENCES autoscaler.scaling_policy (id),
    decision_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    flavor text NOT NULL,
    number integer NOT NULL,
    template jsonb NOT NULL,
    state text NOT NULL,
    state_since timestamptz NOT NULL,
    node_id uuid,
    register_by timestamptz NOT NULL,
    joined_at timestamptz,
    drain_seconds integer,
    drain_generation bigint,
    drain_deadline timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    waits_for text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL,
    CONSTRAINT node_order_state CHECK (
        state IN ('requested', 'provisioning', 'joined', 'releasing', 'released', 'failed')
    ),
    CONSTRAINT node_order_number UNIQUE (policy_id, number),
    CONSTRAINT node_order_node UNIQUE (node_id)
);
CREATE INDEX node_order_live ON autoscaler.node_order (policy_id, id) WHERE state NOT IN ('released', 'failed');

CREATE TABLE autoscaler.pool_view (
    pool_id uuid PRIMARY KEY,
    name text NOT NULL,
    deleted boolean NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE autoscaler.capacity_view (
    pool_id uuid PRIMARY KEY,
    body jsonb NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE autoscaler.node_view (
    node_id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    order_id text,
    state text NOT NULL,
    schedulable boolean NOT NULL,
    cordon_reasons text[] NOT NULL,
    drain jsonb,
    flavors jsonb NOT NULL,
    generation bigint NOT NULL
);
CREATE INDEX node_view_pool ON autoscaler.node_view (pool_id) WHERE state <> 'removed';
CREATE INDEX node_view_order ON autoscaler.node_view (order_id) WHERE order_id IS NOT NULL;

CREATE TABLE autoscaler.demand_view (
    pool_id uuid PRIMARY KEY,
    body jsonb NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE autoscaler.signal_window (
    window_at timestamptz NOT NULL,
    pool_id uuid NOT NULL,
    flavor text NOT NULL,
    name text NOT NULL,
    targets integer NOT NULL,
    samples integer NOT NULL,
    unknown integer NOT NULL,
    mean double precision,
    maximum double precision,
    PRIMARY KEY (pool_id, flavor, name, window_at)
);
CREATE INDEX signal_window_at ON autoscaler.signal_window (window_at);
"""
