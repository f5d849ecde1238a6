"""SQL of signal aggregates: a row per window, pool, flavor and name, kept for seven days."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from millpond_autoscaler.domain.signals import UTILIZATION
from millpond_autoscaler.domain.situation import Signals
from millpond_contracts.bodies.scaling import SignalAggregate
from millpond_contracts.ids import PoolId
from millpond_kernel.uow import UnitOfWork

KEEP = timedelta(days=7)
DELETED_AT_ONCE = 10_000


def aggregate_view(row: asyncpg.Record) -> SignalAggregate:
    """The aggregate of a row."""
    return SignalAggregate.model_validate({**dict(row), "pool_id": PoolId.of(row["pool_id"])})


async def put_windows(unit: UnitOfWork, windows: Sequence[SignalAggregate]) -> None:
    """Keeps windows as filled so far; one that a former reader filled further stays as it is."""
    await unit.execute(
        "INSERT INTO signal_window AS w (window_at, pool_id, flavor, name, targets, samples, unknown, mean, maximum)"
        " SELECT * FROM unnest($1::timestamptz[], $2::uuid[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[],"
        " $8::float8[], $9::float8[]) ON CONFLICT (pool_id, flavor, name, window_at) DO UPDATE SET"
        " targets = excluded.targets, samples = excluded.samples, unknown = excluded.unknown, mean = excluded.mean,"
        " maximum = excluded.maximum WHERE excluded.samples >= w.samples",
        [one.window_at for one in windows],
        [one.pool_id for one in windows],
        [one.flavor for one in windows],
        [one.name for one in windows],
        [one.targets for one in windows],
        [one.samples for one in windows],
        [one.unknown for one in windows],
        [one.mean for one in windows],
        [one.maximum for one in windows],
    )


async def delete_old(unit: UnitOfWork, now: datetime) -> None:
    """Forgets a batch of what is older than seven days."""
    await unit.execute(
        "DELETE FROM signal_window WHERE ctid = ANY(ARRAY("
        "SELECT ctid FROM signal_window WHERE window_at < $1 LIMIT $2))",
        now - KEEP,
        DELETED_AT_ONCE,
    )


async def read_signals(unit: UnitOfWork, pool_id: PoolId, flavor: str, since: datetime, expected: int) -> Signals:
    """How many devices told their utilisation since an instant, in the window with most of them."""
    row = await unit.fetchrow(
        "SELECT coalesce(max(targets), 0) AS told, avg(mean) AS mean FROM signal_window WHERE pool_id = $1"
        " AND flavor = $2 AND name = $3 AND window_at >= $4",
        pool_id,
        flavor,
        UTILIZATION,
        since,
    )
    assert row is not None, "an aggregate has one row"
    return Signals(expected, row["told"], None if row["mean"] is None else round(row["mean"], 4))


async def list_windows(
    unit: UnitOfWork,
    after: str | None,
    limit: int,
    *,
    hours: int,
    pool_id: PoolId | None = None,
    flavor: str | None = None,
    name: str | None = None,
) -> list[asyncpg.Record]:
    """Rows of windows of the last hours with their place in the list (`position`), the newest first."""
    return await unit.fetch(
        "SELECT * FROM (SELECT *, to_char(window_at AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISS')"
        " || '/' || flavor || '/' || name || '/' || pool_id AS position FROM signal_window"
        " WHERE ($1::uuid IS NULL OR pool_id = $1)"
        " AND ($2::text IS NULL OR flavor = $2)"
        " AND ($3::text IS NULL OR name = $3) AND window_at > clock_timestamp() - make_interval(hours => $6)) w"
        " WHERE $4::text IS NULL OR position < $4"
        " ORDER BY position DESC LIMIT $5",
        pool_id,
        flavor,
        name,
        after,
        limit,
        hours,
    )
