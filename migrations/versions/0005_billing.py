"""The schema of billing."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables

revision = "0005_billing"
down_revision = "0004_scheduler"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "billing")


def downgrade() -> None:
    op.execute("DROP SCHEMA billing CASCADE")
