"""Jobs that failed on a node as soon as they had started, nodes that are closed for it, where retries failed."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0021_scheduler_quarantine"
down_revision = "0020_scheduler_freezes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE scheduler.fast_failure")
    op.execute("ALTER TABLE scheduler.node_guard DROP COLUMN quarantined_at")
    op.execute("ALTER TABLE scheduler.task DROP COLUMN failed_on")


_TABLES = """
ALTER TABLE scheduler.task ADD COLUMN failed_on uuid;
ALTER TABLE scheduler.node_guard ADD COLUMN quarantined_at timestamptz;
CREATE TABLE scheduler.fast_failure (
    node_id uuid NOT NULL,
    job_id uuid NOT NULL,
    at timestamptz NOT NULL,
    forgiven boolean NOT NULL DEFAULT false,
    PRIMARY KEY (node_id, job_id)
);
CREATE INDEX fast_failure_job ON scheduler.fast_failure (job_id);
"""
