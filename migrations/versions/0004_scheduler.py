"""The schema of scheduler."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables

revision = "0004_scheduler"
down_revision = "0003_quota"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "scheduler")


def downgrade() -> None:
    op.execute("DROP SCHEMA scheduler CASCADE")
