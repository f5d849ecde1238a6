"""An export that is begun again and again without getting on has an end."""

from alembic import op

revision = "0022_billing_export_tries"
down_revision = "0021_scheduler_quarantine"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE billing.export ADD COLUMN tries integer NOT NULL DEFAULT 0")


def downgrade() -> None:
    op.execute("ALTER TABLE billing.export DROP COLUMN tries")
