"""Gangs, claims on what was lent, and the views of reservations and of lowered limits."""

from alembic import op

from millpond_kernel.tables import run_script, tenant_table

revision = "0016_scheduler_gangs"
down_revision = "0015_quota_reservations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)
    tenant_table(op, "scheduler", "reservation_view", "SELECT")


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.reservation_view")
    op.execute("ALTER TABLE scheduler.virtual_pool_view DROP COLUMN reclaim_at")
    op.execute(
        "ALTER TABLE scheduler.allocation DROP COLUMN priority, DROP COLUMN gang, DROP COLUMN gang_end,"
        " DROP COLUMN claimed_by"
    )


_TABLES = """
ALTER TABLE scheduler.allocation
    ADD COLUMN priority integer NOT NULL DEFAULT 50,
    ADD COLUMN gang boolean NOT NULL DEFAULT false,
    ADD COLUMN gang_end text,
    ADD COLUMN claimed_by uuid;
ALTER TABLE scheduler.virtual_pool_view ADD COLUMN reclaim_at timestamptz;
CREATE TABLE scheduler.reservation_view (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    virtual_pool_id uuid NOT NULL,
    flavor text NOT NULL,
    device_milli bigint NOT NULL,
    starts_at timestamptz NOT NULL,
    ends_at timestamptz,
    cancelled boolean NOT NULL,
    generation bigint NOT NULL
);
"""
