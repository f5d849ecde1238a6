"""Proposals of how a pool is packed."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0028_scheduler_packing"
down_revision = "0027_scheduler_moves"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.packing")


_TABLES = """
CREATE TABLE scheduler.packing (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL,
    state text NOT NULL CHECK (state IN ('queued', 'running', 'ready', 'accepted', 'withdrawn', 'failed')),
    tries integer NOT NULL DEFAULT 0,
    result jsonb,
    demand jsonb,
    error text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    handed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun_at timestamptz,
    ready_at timestamptz,
    accepted_at timestamptz,
    accepted_by text,
    generation bigint NOT NULL
);
-- One is computed and one is in force at a time.
CREATE UNIQUE INDEX packing_under_way ON scheduler.packing (pool_id) WHERE state IN ('queued', 'running');
CREATE UNIQUE INDEX packing_in_force ON scheduler.packing (pool_id) WHERE state = 'accepted';
"""
