"""Events of the scheduler are found by what they are about."""

from alembic import op

revision = "0014_scheduler_subjects"
down_revision = "0013_billing_market"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE INDEX outbox_subject ON scheduler.outbox (subject, seq)")


def downgrade() -> None:
    op.execute("DROP INDEX scheduler.outbox_subject")
