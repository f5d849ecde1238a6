"""Guards of hardware partitions: which memory slices of a device are free, and that a device is in one mode at a time."""

from alembic import op

from millpond_kernel.tables import run_script

revision = "0029_scheduler_partitions"
down_revision = "0028_scheduler_packing"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op, _TABLES)


def downgrade() -> None:
    op.execute("ALTER TABLE scheduler.node_guard DROP COLUMN slot_counts, DROP COLUMN free_slots")
    op.execute("DROP FUNCTION scheduler.are_one_mode(integer[], bigint[], integer[])")
    op.execute("DROP FUNCTION scheduler.is_one_mode(integer, bigint, integer)")
    op.execute("DROP FUNCTION scheduler.all_slots(integer)")


# Four bits for each slice, 1 = free: taken twice it borrows from its neighbour and leaves a number that is refused.
# Both arrays are empty on a node without devices in partition mode, and for a version that knows of none.
_TABLES = """
CREATE FUNCTION scheduler.all_slots(slices integer) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ((1::bigint << 4 * coalesce(slices, 0)) - 1) / 15
$$;
CREATE FUNCTION scheduler.is_one_mode(milli integer, slots bigint, slices integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN slices = 0 THEN slots = 0 ELSE
        slots BETWEEN 0 AND scheduler.all_slots(slices) AND slots & ~scheduler.all_slots(slices) = 0
        AND milli * slices = 1000 * bit_count(slots::bit(64)) END
$$;
CREATE FUNCTION scheduler.are_one_mode(milli integer[], slots bigint[], slices integer[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(bool_and(scheduler.is_one_mode(m, s, c) IS TRUE), true) FROM unnest(milli, slots, slices) AS t(m, s, c)
$$;
ALTER TABLE scheduler.node_guard
    ADD COLUMN slot_counts integer[] NOT NULL DEFAULT '{}',
    ADD COLUMN free_slots bigint[] NOT NULL DEFAULT '{}';
ALTER TABLE scheduler.node_guard ADD CONSTRAINT node_guard_slots CHECK (
    slot_counts = '{}' AND free_slots = '{}' OR scheduler.are_one_mode(free_milli,free_slots,slot_counts)
) NOT VALID;
ALTER TABLE scheduler.node_guard VALIDATE CONSTRAINT node_guard_slots;
"""
