"""The scheduler's demand by pool: what waits and is held back by capacity alone, as it was told last."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0018_scheduler_demand"
down_revision = "0017_autoscaler"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.demand")


_TABLES = """
CREATE TABLE scheduler.demand (
    pool_id uuid PRIMARY KEY,
    shapes jsonb NOT NULL,
    as_of timestamptz NOT NULL,
    generation bigint NOT NULL
);
"""
