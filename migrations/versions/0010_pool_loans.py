"""Nodes that pools lend one another, and what pools are short of."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0010_pool_loans"
down_revision = "0009_scheduler_lists"
branch_labels = None
depends_on = None

_DDL = """
CREATE TABLE registry.loan (
    id uuid PRIMARY KEY,
    node_id uuid NOT NULL,
    from_pool_id uuid NOT NULL,
    to_pool_id uuid NOT NULL,
    threshold text NOT NULL,
    amount bigint NOT NULL,
    state text NOT NULL,
    state_since timestamptz NOT NULL,
    reason text NOT NULL,
    asked_at timestamptz NOT NULL,
    arrived_at timestamptz,
    due_at timestamptz,
    ended_at timestamptz,
    generation bigint NOT NULL
);
CREATE UNIQUE INDEX loan_open ON registry.loan (node_id) WHERE state IN ('moving', 'lent', 'returning');
CREATE INDEX loan_from ON registry.loan (from_pool_id);
CREATE INDEX loan_to ON registry.loan (to_pool_id);
CREATE TABLE registry.shortage (
    pool_id uuid NOT NULL REFERENCES registry.pool (id) ON DELETE CASCADE,
    threshold text NOT NULL,
    low bigint NOT NULL,
    available bigint NOT NULL,
    since timestamptz NOT NULL,
    PRIMARY KEY (pool_id, threshold)
);
"""


def upgrade() -> None:
    run_script(op, _DDL)


def downgrade() -> None:
    op.execute("DROP TABLE registry.shortage, registry.loan")
