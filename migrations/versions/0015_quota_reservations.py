"""Reservations, and from when on what is above a virtual pool's limits is stopped."""

from alembic import op

from millpond_kernel.tables import run_script, tenant_table

revision = "0015_quota_reservations"
down_revision = "0014_scheduler_subjects"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE quota.virtual_pool ADD COLUMN reclaim_at timestamptz")
    run_script(op, _TABLES)
    tenant_table(op, "quota", "reservation", "SELECT")


def downgrade() -> None:
    op.execute("DROP TABLE quota.reservation")
    op.execute("ALTER TABLE quota.virtual_pool DROP COLUMN reclaim_at")


_TABLES = """
CREATE TABLE quota.reservation (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    virtual_pool_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    flavor text NOT NULL,
    device_milli bigint NOT NULL,
    starts_at timestamptz NOT NULL,
    ends_at timestamptz,
    labels jsonb NOT NULL,
    cancelled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation bigint NOT NULL,
    CONSTRAINT reservation_window CHECK (ends_at > starts_at),
    CONSTRAINT reservation_amount CHECK (device_milli > 0)
);
CREATE INDEX reservation_pool ON quota.reservation (pool_id, flavor) WHERE cancelled_at IS NULL;
CREATE INDEX reservation_virtual_pool ON quota.reservation (virtual_pool_id, id);
"""
