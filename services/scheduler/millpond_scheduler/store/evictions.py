"""Rows of what was stopped for other work within the hour: whoever is stopped too often, or in a circle, is spared."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from millpond_kernel.uow import UnitOfWork

KEPT = timedelta(hours=1)


async def add_evictions(
    unit: UnitOfWork, allocations: Sequence[UUID], tasks: Sequence[UUID], claimants: Sequence[UUID], now: datetime
) -> None:
    """Notes for whom each allocation was ordered to stop, and forgets what is older than an hour."""
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
