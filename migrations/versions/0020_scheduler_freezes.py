"""Pools of which so many nodes are silent together that their work is not given up."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0020_scheduler_freezes"
down_revision = "0019_scheduler_prices"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.evacuation_freeze")


_TABLES = """
CREATE TABLE scheduler.evacuation_freeze (
    pool_id uuid PRIMARY KEY,
    silent integer NOT NULL,
    nodes integer NOT NULL,
    since timestamptz NOT NULL
);
"""
