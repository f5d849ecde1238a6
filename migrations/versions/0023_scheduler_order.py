"""What the order of queues goes by: how much a task may hold at most, and places that only the leader knows."""

from alembic import op

revision = "0023_scheduler_order"
down_revision = "0022_billing_export_tries"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE scheduler.task ADD COLUMN work bigint")
    op.execute("ALTER TABLE scheduler.verdict ADD COLUMN position integer")


def downgrade() -> None:
    op.execute("ALTER TABLE scheduler.verdict DROP COLUMN position")
    op.execute("ALTER TABLE scheduler.task DROP COLUMN work")
