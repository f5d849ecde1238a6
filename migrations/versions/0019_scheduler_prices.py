"""What a price version costs, kept by the scheduler for offers."""

from alembic import op

revision = "0019_scheduler_prices"
down_revision = "0018_scheduler_demand"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE scheduler.price_view ADD COLUMN currency text, ADD COLUMN minimum_seconds integer,"
        " ADD COLUMN lines jsonb"
    )
    # Versions that are known already are read once more, from the start of the feed or a snapshot, and filled.
    op.execute("UPDATE scheduler.cursor SET seq = 0 WHERE consumer = 'prices' AND publisher = 'billing'")


def downgrade() -> None:
    op.execute("ALTER TABLE scheduler.price_view DROP COLUMN currency, DROP COLUMN minimum_seconds, DROP COLUMN lines")
