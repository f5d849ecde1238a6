"""Nodes say how the operator pays for them, and join tokens what their nodes say."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0012_registry_market"
down_revision = "0011_billing_exports"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _MARKET)


def downgrade() -> None:
    op.execute("ALTER TABLE registry.node DROP COLUMN market")
    op.execute("ALTER TABLE registry.join_token DROP COLUMN market")


_MARKET = """
ALTER TABLE registry.node ADD COLUMN market text NOT NULL DEFAULT 'on_demand';
ALTER TABLE registry.join_token ADD COLUMN market text NOT NULL DEFAULT 'on_demand';
"""
