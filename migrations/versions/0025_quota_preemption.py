"""Whether a virtual pool's jobs stop others of it, and how long its tasks run before they are stopped for others."""

from alembic import op

revision = "0025_quota_preemption"
down_revision = "0024_scheduler_growth"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE quota.virtual_pool ADD COLUMN preemption text NOT NULL DEFAULT 'never',"
        " ADD COLUMN minimum_runtime_seconds integer NOT NULL DEFAULT 0"
    )


def downgrade() -> None:
    op.execute("ALTER TABLE quota.virtual_pool DROP COLUMN preemption, DROP COLUMN minimum_runtime_seconds")
