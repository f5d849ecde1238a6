"""How large a pool may grow, kept by the scheduler so that an explanation can say that it is at its largest."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0024_scheduler_growth"
down_revision = "0023_scheduler_order"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.scaling_policy_view")


_TABLES = """
CREATE TABLE scheduler.scaling_policy_view (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    pool_id uuid NOT NULL,
    flavor text NOT NULL,
    max_nodes integer NOT NULL,
    enabled boolean NOT NULL,
    deleted boolean NOT NULL,
    generation bigint NOT NULL
);
"""
