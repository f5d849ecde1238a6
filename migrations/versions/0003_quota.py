"""The schema of quota."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables

revision = "0003_quota"
down_revision = "0002_registry"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "quota")


def downgrade() -> None:
    op.execute("DROP SCHEMA quota CASCADE")
