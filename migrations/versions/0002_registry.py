"""The schema of registry."""

from alembic import op

from millpond_kernel.tables import create_kernel_tables

revision = "0002_registry"
down_revision = "0001_foundation"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables(op, "registry")


def downgrade() -> None:
    op.execute("DROP SCHEMA registry CASCADE")
