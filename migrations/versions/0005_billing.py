"""The schema of billing."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables, run_script, tenant_table

revision = "0005_billing"
down_revision = "0004_scheduler"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "billing")
    run_script(op, _TABLES)
    for table in ("price_version", "tenant_view", "allocation_view", "segment", "adjustment", "statement"):
        tenant_table(op, "billing", table, "SELECT")
    tenant_table(op, "billing", "export", "SELECT, INSERT")
    run_script(op, _PUBLIC_PRICES)
    run_script(op, _GUARDS)


def downgrade() -> None:
    op.execute("DROP SCHEMA billing CASCADE")


_TABLES = """
CREATE TABLE billing.price_version (
    id uuid PRIMARY KEY,
    price_book_id uuid NOT NULL,
    tenant_id uuid,
    currency text NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    minimum_seconds integer NOT NULL,
    lines jsonb NOT NULL,
    note text NOT NULL,
    example boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL,
    CONSTRAINT price_version_ends_after_start CHECK (valid_to IS NULL OR valid_to > valid_from),
    CONSTRAINT price_version_no_overlap EXCLUDE USING gist (
        coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'::uuid) WITH =,
        tstzrange(valid_from, valid_to) WITH &&
    )
);

CREATE TABLE billing.tenant_view (
    tenant_id uuid PRIMARY KEY,
    body jsonb NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE billing.allocation_view (
    allocation_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    node_id uuid NOT NULL,
    body jsonb NOT NULL,
    bound_at timestamptz NOT NULL,
    active_at timestamptz,
    released_at timestamptz,
    unrated text,
    generation bigint NOT NULL
);
CREATE INDEX allocation_view_open ON billing.allocation_view (tenant_id, allocation_id) WHERE released_at IS NULL;
CREATE INDEX allocation_view_unrated ON billing.allocation_view (tenant_id) WHERE unrated IS NOT NULL;
CREATE INDEX allocation_view_node ON billing.allocation_view (node_id, bound_at);

CREATE TABLE billing.segment (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    project_id uuid,
    job_id uuid NOT NULL,
    task_id uuid NOT NULL,
    allocation_id uuid NOT NULL,
    virtual_pool_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    node_id uuid NOT NULL,
    kind text NOT NULL,
    sku text NOT NULL,
    amount bigint NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz NOT NULL,
    seconds bigint NOT NULL,
    list_version_id uuid NOT NULL,
    list_unit_price numeric(38, 18) NOT NULL,
    list_per_hour numeric(38, 9) NOT NULL,
    price_version_id uuid NOT NULL,
    unit_price numeric(38, 18) NOT NULL,
    per_hour numeric(38, 9) NOT NULL,
    currency text NOT NULL,
    usage numeric(48, 24),
    round_up numeric(48, 24),
    minimum numeric(48, 24),
    price_difference numeric(48, 24),
    waiver numeric(48, 24),
    rated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT segment_has_length CHECK (CASE kind WHEN 'minimum' THEN end_at = start_at ELSE end_at > start_at END),
    CONSTRAINT segment_amounts CHECK (amount > 0 AND seconds >= 0),
    CONSTRAINT segment_charges_add_up CHECK (
        coalesce(usage, 0) + coalesce(round_up, 0) + coalesce(minimum, 0) + coalesce(price_difference, 0)
        + coalesce(waiver, 0) = CASE kind WHEN 'waived' THEN 0 ELSE unit_price * amount * seconds END
    ),
    CONSTRAINT segment_once UNIQUE (allocation_id, sku, kind, start_at),
    CONSTRAINT segment_no_overlap EXCLUDE USING gist (
        allocation_id WITH =,
        sku WITH =,
        tstzrange(start_at, end_at) WITH &&
    ) WHERE (kind <> 'minimum')
);
CREATE INDEX segment_tenant_start ON billing.segment (tenant_id, start_at, id);
CREATE INDEX segment_job_start ON billing.segment (job_id, start_at, id);

CREATE TABLE billing.adjustment (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    allocation_id uuid NOT NULL,
    sku text NOT NULL,
    kind text NOT NULL,
    original_number integer NOT NULL,
    original_start timestamptz NOT NULL,
    original_end timestamptz NOT NULL,
    period_start timestamptz NOT NULL,
    seconds bigint NOT NULL,
    amount numeric(48, 24) NOT NULL,
    currency text NOT NULL,
    reason text NOT NULL,
    posted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX adjustment_tenant_period ON billing.adjustment (tenant_id, period_start, id);
CREATE INDEX adjustment_allocation ON billing.adjustment (allocation_id);

CREATE TABLE billing.anomaly (
    allocation_id uuid NOT NULL,
    kind text NOT NULL,
    detail text NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (allocation_id, kind, detail)
);

CREATE TABLE billing.statement (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    state text NOT NULL,
    number bigint,
    period_number integer NOT NULL,
    period_start timestamptz NOT NULL,
    period_end timestamptz NOT NULL,
    timezone text NOT NULL,
    body jsonb,
    digest text,
    queued_at timestamptz,
    closed_at timestamptz,
    CONSTRAINT statement_state CHECK (state IN ('open', 'queued', 'closed')),
    CONSTRAINT statement_closed_whole CHECK ((state = 'closed') = (
        number IS NOT NULL AND body IS NOT NULL AND digest IS NOT NULL AND closed_at IS NOT NULL
    )),
    CONSTRAINT statement_once UNIQUE (tenant_id, period_start),
    CONSTRAINT statement_period_number UNIQUE (tenant_id, period_number),
    CONSTRAINT statement_number UNIQUE (number),
    CONSTRAINT statement_no_overlap EXCLUDE USING gist (
        tenant_id WITH =,
        tstzrange(period_start, period_end) WITH &&
    )
);
CREATE INDEX statement_unclosed ON billing.statement (period_end) WHERE state <> 'closed';

CREATE TABLE billing.statement_counter (
    series text PRIMARY KEY,
    last bigint NOT NULL
);
INSERT INTO billing.statement_counter VALUES ('statement', 0);

CREATE TABLE billing.export (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    format text NOT NULL,
    period_start timestamptz NOT NULL,
    period_end timestamptz NOT NULL,
    state text NOT NULL,
    rows bigint,
    bytes bigint,
    digest text,
    error text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    touched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL
);
CREATE INDEX export_tenant ON billing.export (tenant_id, id);

CREATE TABLE billing.capacity_span (
    node_id uuid NOT NULL,
    item text NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz,
    sku text NOT NULL,
    amount bigint NOT NULL,
    available boolean NOT NULL,
    PRIMARY KEY (node_id, item, start_at),
    CONSTRAINT capacity_span_has_length CHECK (end_at IS NULL OR end_at > start_at)
);

CREATE TABLE billing.node_view (
    node_id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    name text NOT NULL,
    generation bigint NOT NULL
);
"""

# Public prices belong to no tenant and are everybody's to read.
_PUBLIC_PRICES = """
CREATE POLICY public_prices ON billing.price_version FOR SELECT TO millpond_billing_tenant USING (tenant_id IS NULL);
"""

# A closed statement, a segment and an adjustment never change; a published price may only have its end brought forward.
_GUARDS = """
CREATE FUNCTION billing.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'billing.% rows never change', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE FUNCTION billing.refuse_change_of_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'closed' THEN
        RAISE EXCEPTION 'a closed statement never changes' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE FUNCTION billing.refuse_change_of_price() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.tenant_id, OLD.currency, OLD.valid_from, OLD.minimum_seconds, OLD.lines)
        IS DISTINCT FROM (NEW.tenant_id, NEW.currency, NEW.valid_from, NEW.minimum_seconds, NEW.lines)
        OR (OLD.valid_to IS NOT NULL AND OLD.valid_to IS DISTINCT FROM NEW.valid_to) THEN
        RAISE EXCEPTION 'a published price never changes' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER segment_never_changes BEFORE UPDATE OR DELETE ON billing.segment
    FOR EACH ROW EXECUTE FUNCTION billing.refuse_change();
CREATE TRIGGER adjustment_never_changes BEFORE UPDATE OR DELETE ON billing.adjustment
    FOR EACH ROW EXECUTE FUNCTION billing.refuse_change();
CREATE TRIGGER statement_stays_closed BEFORE UPDATE ON billing.statement
    FOR EACH ROW EXECUTE FUNCTION billing.refuse_change_of_closed();
CREATE TRIGGER statement_is_never_deleted BEFORE DELETE ON billing.statement
    FOR EACH ROW EXECUTE FUNCTION billing.refuse_change();
CREATE TRIGGER price_version_never_changes BEFORE UPDATE ON billing.price_version
    FOR EACH ROW EXECUTE FUNCTION billing.refuse_change_of_price();
CREATE TRIGGER price_version_is_never_deleted BEFORE DELETE ON billing.price_version
    FOR EACH ROW EXECUTE FUNCTION billing.refuse_change();
"""
