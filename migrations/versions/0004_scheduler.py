"""The schema of scheduler."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables, readable_by_tenants, run_script, tenant_table

revision = "0004_scheduler"
down_revision = "0003_quota"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "scheduler")
    run_script(op, _TABLES)
    run_script(op, _GUARDS)
    run_script(op, _VIEWS)
    tenant_table(op, "scheduler", "job", "SELECT, INSERT, UPDATE")
    tenant_table(op, "scheduler", "task", "SELECT, INSERT, UPDATE")
    for table in (
        "allocation",
        "verdict",
        "log",
        "usage",
        "admission",
        "virtual_pool_view",
        "project_view",
        "price_view",
    ):
        tenant_table(op, "scheduler", table, "SELECT")
    for table in ("pool_view", "shard_state"):
        readable_by_tenants(op, "scheduler", table)
    # A submit tells the leader in its own transaction; the row names an id and nothing else.
    op.execute("GRANT INSERT ON scheduler.change TO millpond_scheduler_tenant")


def downgrade() -> None:
    op.execute("DROP SCHEMA scheduler CASCADE")


_TABLES = """
CREATE TABLE scheduler.job (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    project_id uuid,
    virtual_pool_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    priority integer NOT NULL,
    labels jsonb NOT NULL,
    spec jsonb NOT NULL,
    state text NOT NULL,
    state_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text,
    message text,
    cancel_requested boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    ended_at timestamptz,
    generation bigint NOT NULL
);
CREATE INDEX job_tenant ON scheduler.job (tenant_id, id);
CREATE INDEX job_pending ON scheduler.job (virtual_pool_id, priority DESC, id) WHERE state = 'pending';

CREATE TABLE scheduler.task (
    id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    virtual_pool_id uuid NOT NULL,
    group_name text NOT NULL,
    index integer NOT NULL,
    attempt integer NOT NULL,
    priority integer NOT NULL,
    queued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    state text NOT NULL,
    state_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid,
    reason text,
    message text,
    exit_code integer,
    CONSTRAINT task_place UNIQUE (job_id, group_name, index)
);
CREATE INDEX task_pending ON scheduler.task (virtual_pool_id, priority DESC, queued_at, id) WHERE state = 'pending';

CREATE TABLE scheduler.allocation (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    project_id uuid,
    virtual_pool_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    node_id uuid NOT NULL,
    job_id uuid NOT NULL,
    job_name text NOT NULL,
    labels jsonb NOT NULL,
    task_id uuid NOT NULL,
    group_name text NOT NULL,
    index integer NOT NULL,
    attempt integer NOT NULL,
    cpu_milli bigint NOT NULL,
    memory_mib bigint NOT NULL,
    flavor text,
    devices jsonb NOT NULL,
    term text NOT NULL DEFAULT 'on_demand',
    price_version_id uuid,
    stop_grace_seconds integer NOT NULL,
    time_limit_seconds integer,
    state text NOT NULL,
    epoch bigint NOT NULL,
    bound_at timestamptz NOT NULL,
    active_at timestamptz,
    stop_requested_at timestamptz,
    stop_reason text,
    waived_from timestamptz,
    released_at timestamptz,
    reason text,
    exit_code integer,
    last_sequence bigint NOT NULL DEFAULT 0,
    order_sent_at timestamptz,
    missing_since timestamptz,
    generation bigint NOT NULL,
    CONSTRAINT allocation_order CHECK (
        (active_at IS NULL OR active_at >= bound_at)
        AND (released_at IS NULL OR released_at >= coalesce(active_at, bound_at))
        AND ((state = 'released') = (released_at IS NOT NULL))
    )
);
CREATE UNIQUE INDEX allocation_one_per_task ON scheduler.allocation (task_id) WHERE state <> 'released';
CREATE INDEX allocation_live ON scheduler.allocation (node_id) WHERE state <> 'released';
CREATE INDEX allocation_ordered ON scheduler.allocation (node_id) WHERE state IN ('bound', 'releasing');
CREATE INDEX allocation_limited ON scheduler.allocation (active_at)
    WHERE state = 'active' AND time_limit_seconds IS NOT NULL;
CREATE INDEX allocation_job ON scheduler.allocation (job_id, id);
CREATE INDEX allocation_tenant ON scheduler.allocation (tenant_id, id);

CREATE TABLE scheduler.verdict (
    job_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    dominant text NOT NULL,
    message text NOT NULL,
    body jsonb NOT NULL,
    as_of timestamptz NOT NULL
);

CREATE TABLE scheduler.log (
    allocation_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    next_offset bigint NOT NULL DEFAULT 0,
    ended boolean NOT NULL DEFAULT false,
    cut boolean NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT log_attempt UNIQUE (task_id, attempt)
);
CREATE INDEX log_age ON scheduler.log (updated_at);

CREATE TABLE scheduler.change (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    object_id uuid NOT NULL
);

CREATE TABLE scheduler.shard_state (
    shard integer PRIMARY KEY,
    decided_at timestamptz NOT NULL
);
"""

_GUARDS = """
CREATE TABLE scheduler.node_guard (
    node_id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    open boolean NOT NULL,
    incarnation bigint NOT NULL,
    layout bigint NOT NULL,
    shrunk boolean NOT NULL DEFAULT false,
    total_cpu_milli bigint NOT NULL,
    total_memory_mib bigint NOT NULL,
    device_count integer NOT NULL,
    device_ids text[] NOT NULL,
    total_mib integer[] NOT NULL,
    free_cpu_milli bigint NOT NULL,
    free_memory_mib bigint NOT NULL,
    free_milli integer[] NOT NULL,
    free_mib integer[] NOT NULL,
    emptied_generation bigint,
    CONSTRAINT node_guard_host CHECK (free_cpu_milli >= 0 AND free_memory_mib >= 0),
    CONSTRAINT node_guard_milli CHECK (
        coalesce(array_ndims(free_milli), 1) = 1 AND cardinality(free_milli) = device_count
        AND array_position(free_milli, NULL) IS NULL AND 0 <= ALL (free_milli)
    ),
    CONSTRAINT node_guard_mib CHECK (
        coalesce(array_ndims(free_mib), 1) = 1 AND cardinality(free_mib) = device_count
        AND array_position(free_mib, NULL) IS NULL AND 0 <= ALL (free_mib)
    ),
    CONSTRAINT node_guard_layout CHECK (cardinality(device_ids) = device_count AND cardinality(total_mib) = device_count)
);

CREATE TABLE scheduler.usage (
    virtual_pool_id uuid NOT NULL,
    resource text NOT NULL,
    flavor text NOT NULL,
    tenant_id uuid NOT NULL,
    used bigint NOT NULL DEFAULT 0,
    guaranteed bigint NOT NULL,
    hard bigint NOT NULL,
    limit_generation bigint NOT NULL,
    PRIMARY KEY (virtual_pool_id, resource, flavor),
    CONSTRAINT usage_not_negative CHECK (used >= 0)
);

CREATE FUNCTION scheduler.refuse_over_hard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'usage of % of virtual pool % would be % of at most %',
        concat_ws('/', NEW.resource, nullif(NEW.flavor, '')), NEW.virtual_pool_id, NEW.used, NEW.hard
        USING ERRCODE = 'check_violation', CONSTRAINT = 'usage_hard';
END
$$;
CREATE TRIGGER usage_hard BEFORE UPDATE OF used ON scheduler.usage FOR EACH ROW
    WHEN (NEW.used > OLD.used AND NEW.used > NEW.hard) EXECUTE FUNCTION scheduler.refuse_over_hard();

CREATE TABLE scheduler.node_lease (
    node_id uuid PRIMARY KEY,
    incarnation bigint NOT NULL,
    renewed_at timestamptz NOT NULL,
    leased_until timestamptz NOT NULL,
    silent boolean NOT NULL DEFAULT false,
    boot_id text NOT NULL,
    exchange_at timestamptz NOT NULL,
    exchange_monotonic_ms bigint NOT NULL,
    previous_boot_id text,
    previous_exchange_at timestamptz,
    previous_exchange_monotonic_ms bigint
);

CREATE TABLE scheduler.admission (
    virtual_pool_id uuid NOT NULL,
    resource text NOT NULL,
    flavor text NOT NULL,
    tenant_id uuid NOT NULL,
    blocked boolean NOT NULL,
    used bigint NOT NULL,
    hard bigint NOT NULL,
    missing bigint NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL,
    PRIMARY KEY (virtual_pool_id, resource, flavor)
);
"""

_VIEWS = """
CREATE TABLE scheduler.node_view (
    node_id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    body jsonb NOT NULL,
    drain_generation bigint,
    drain_deadline timestamptz,
    removed boolean NOT NULL,
    generation bigint NOT NULL
);
CREATE INDEX node_view_draining ON scheduler.node_view (drain_deadline) WHERE drain_generation IS NOT NULL;

CREATE TABLE scheduler.pool_view (
    pool_id uuid PRIMARY KEY,
    body jsonb NOT NULL,
    deleted boolean NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE scheduler.virtual_pool_view (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    name text NOT NULL,
    limits jsonb NOT NULL,
    policy text NOT NULL,
    deleted boolean NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE scheduler.project_view (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    deleted boolean NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE scheduler.price_view (
    id uuid PRIMARY KEY,
    tenant_id uuid,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    generation bigint NOT NULL
);
"""
