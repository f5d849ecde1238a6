"""Indexes for looking through the audit trail of registry."""

from alembic import op

from millpond_kernel.tables import index_audit

revision = "0006_registry_lists"
down_revision = "0005_billing"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_audit(op, "registry")


def downgrade() -> None:
    for index in ("audit_at", "audit_actor", "audit_object"):
        op.execute(f"DROP INDEX registry.{index}")
