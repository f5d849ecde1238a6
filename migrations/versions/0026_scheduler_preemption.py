"""What virtual pools say of stops for others, and what was stopped so within the hour."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0026_scheduler_preemption"
down_revision = "0025_quota_preemption"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.eviction")
    op.execute("ALTER TABLE scheduler.virtual_pool_view DROP COLUMN preemption, DROP COLUMN minimum_runtime_seconds")


_TABLES = """
ALTER TABLE scheduler.virtual_pool_view
    ADD COLUMN preemption text NOT NULL DEFAULT 'never',
    ADD COLUMN minimum_runtime_seconds integer NOT NULL DEFAULT 0;
CREATE TABLE scheduler.eviction (
    allocation_id uuid PRIMARY KEY,
    task_id uuid NOT NULL,
    claimant_id uuid NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX eviction_age ON scheduler.eviction (at);
"""
