"""Rows of what was stopped for other work within the hour: whoever is stopped too often, or in a circle, is spared."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from millpond_kernel.uow import UnitOfWork

# What counts of them is an hour; what made room for a claimant may take another one to stop.
KEPT = timedelta(hours=2)


async def add_evictions(
    unit: UnitOfWork, allocations: Sequence[UUID], tasks: Sequence[UUID], claimants: Sequence[UUID], now: datetime
) -> None:
    """Notes for whom each allocation was ordered to stop, and forgets what is of no use any more."""
    await unit.execute("DELETE FROM eviction WHERE at < $1", now - KEPT)
    await unit.execute(
        "INSERT INTO eviction (allocation_id, task_id, claimant_id, at)"
        " SELECT a, t, c, $4 FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS x(a, t, c)",
        allocations,
        tasks,
        claimants,
        now,
    )


async def list_evictions(unit: UnitOfWork) -> list[asyncpg.Record]:
    """What was stopped for others within the hour, oldest first."""
    return await unit.fetch(
        "SELECT task_id, claimant_id, at FROM eviction WHERE at > clock_timestamp() - interval '1 hour'"
        " ORDER BY at, allocation_id"
    )


async def list_emptied(unit: UnitOfWork) -> list[asyncpg.Record]:
    """By task that has waited ever since others were stopped for it: the nodes that they leave or left (`nodes`), and
    whether to start elsewhere (`moves`)."""
    return await unit.fetch(
        "SELECT e.claimant_id, array_agg(a.node_id) AS nodes, bool_or(a.stop_reason = 'moved') AS moves"
        " FROM eviction e JOIN allocation a ON a.id = e.allocation_id"
        " JOIN task t ON t.id = e.claimant_id AND t.state = 'pending' AND t.state_since <= e.at GROUP BY e.claimant_id"
    )
