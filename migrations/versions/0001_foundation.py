"""The extension that exclusion constraints over scalar columns need, and the version table's visibility."""

from alembic import op

revision = "0001_foundation"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE EXTENSION IF NOT EXISTS btree_gist WITH SCHEMA public")
    op.execute("GRANT SELECT ON public.alembic_version TO PUBLIC")
    op.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


def downgrade() -> None:
    op.execute("DROP EXTENSION IF EXISTS btree_gist")
