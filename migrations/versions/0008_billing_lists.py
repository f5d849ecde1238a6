"""Indexes for looking through the audit trail of billing."""

from alembic import op

from millpond_kernel.tables import index_audit

revision = "0008_billing_lists"
down_revision = "0007_quota_lists"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_audit(op, "billing")


def downgrade() -> None:
    for index in ("audit_at", "audit_actor", "audit_object"):
        op.execute(f"DROP INDEX billing.{index}")
