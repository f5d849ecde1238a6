"""What nodes offered is kept by pool and by how the operator pays for it."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0013_billing_market"
down_revision = "0012_registry_market"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _MARKET)


def downgrade() -> None:
    op.execute("ALTER TABLE billing.capacity_span DROP COLUMN pool_id, DROP COLUMN market")


_MARKET = """
ALTER TABLE billing.capacity_span ADD COLUMN pool_id uuid, ADD COLUMN market text;
"""
