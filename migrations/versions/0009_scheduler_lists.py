"""Indexes for looking through the audit trail and for jobs that have not ended of scheduler."""

from alembic import op

from millpond_kernel.tables import index_audit

revision = "0009_scheduler_lists"
down_revision = "0008_billing_lists"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_audit(op, "scheduler")
    op.execute("CREATE INDEX job_unfinished ON scheduler.job (tenant_id, id) WHERE state IN ('pending', 'running')")


def downgrade() -> None:
    for index in ("audit_at", "audit_actor", "audit_object"):
        op.execute(f"DROP INDEX scheduler.{index}")
    op.execute("DROP INDEX scheduler.job_unfinished")
