"""Moves that were ordered so that a waiting job starts, and what became of each."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0027_scheduler_moves"
down_revision = "0026_scheduler_preemption"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.move, scheduler.move_order")


_TABLES = """
CREATE TABLE scheduler.move_order (
    id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    pool_id uuid NOT NULL,
    plan text NOT NULL,
    max_moves integer NOT NULL,
    cool_down_seconds integer NOT NULL,
    ordered_by text NOT NULL,
    state text NOT NULL DEFAULT 'requested',
    message text,
    requested_at timestamptz NOT NULL DEFAULT now(),
    settled_at timestamptz,
    CONSTRAINT move_order_state CHECK (state IN ('requested', 'moving', 'done', 'refused')),
    CONSTRAINT move_order_settled CHECK ((settled_at IS NULL) = (state IN ('requested', 'moving')))
);
CREATE UNIQUE INDEX move_order_open ON scheduler.move_order (job_id) WHERE settled_at IS NULL;
CREATE INDEX move_order_job ON scheduler.move_order (job_id, id);
CREATE TABLE scheduler.move (
    allocation_id uuid PRIMARY KEY,
    order_id uuid NOT NULL,
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    job_id uuid NOT NULL,
    from_node_id uuid NOT NULL,
    to_node_id uuid NOT NULL,
    lost_seconds bigint NOT NULL,
    ordered_at timestamptz NOT NULL,
    result text,
    ended_at timestamptz,
    CONSTRAINT move_result CHECK ((result IS NULL) = (ended_at IS NULL))
);
CREATE UNIQUE INDEX move_open ON scheduler.move (task_id) WHERE result IS NULL;
CREATE INDEX move_of_order ON scheduler.move (order_id);
CREATE INDEX move_of_job ON scheduler.move (job_id);
"""
