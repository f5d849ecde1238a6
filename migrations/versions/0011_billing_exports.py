"""Exports are built in steps that survive their worker, and their files are kept for a time."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0011_billing_exports"
down_revision = "0010_pool_loans"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _EXPORT)


def downgrade() -> None:
    op.execute(
        "ALTER TABLE billing.export DROP COLUMN as_of, DROP COLUMN running, DROP COLUMN place, DROP COLUMN expires_at"
    )


_EXPORT = """
ALTER TABLE billing.export
    ADD COLUMN as_of timestamptz,
    ADD COLUMN running uuid[],
    ADD COLUMN place text,
    ADD COLUMN expires_at timestamptz;
"""
