"""Indexes for looking through the audit trail of quota."""

from alembic import op

from millpond_kernel.tables import index_audit

revision = "0007_quota_lists"
down_revision = "0006_registry_lists"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_audit(op, "quota")


def downgrade() -> None:
    for index in ("audit_at", "audit_actor", "audit_object"):
        op.execute(f"DROP INDEX quota.{index}")
