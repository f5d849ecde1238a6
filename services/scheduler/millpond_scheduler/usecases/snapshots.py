"""The present state for other services that are new or too far behind: allocations and jobs, in pages by id."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from millpond_contracts.ids import JobId
from millpond_kernel.pagination import snapshot_position
from millpond_kernel.uow import UnitOfWork
from millpond_kernel.watching import SnapshotSource
from millpond_scheduler.store import jobs
from millpond_scheduler.store.allocations import allocation_record
from millpond_scheduler.store.demand import demand_view

# As long as events are kept: whoever is further behind starts from what is here.
KEPT_DAYS = 35


async def list_allocation_items(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Allocations that hold something, or were released within the retention of events."""
    rows = await unit.fetch(
        "SELECT * FROM allocation WHERE ($1::uuid IS NULL OR id > $1)"
        " AND (released_at IS NULL OR released_at > clock_timestamp() - make_interval(days => $3))"
        " ORDER BY id LIMIT $2",
        snapshot_position(after),
        limit,
        KEPT_DAYS,
    )
    items = [allocation_record(row).view().model_dump(mode="json") for row in rows]
    return items, str(UUID(int=rows[-1]["id"].int)) if len(rows) == limit else None


async def list_live_allocation_items(
    unit: UnitOfWork, after: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Allocations that hold something: what another service's recount compares with."""
    rows = await unit.fetch(
        "SELECT * FROM allocation WHERE ($1::uuid IS NULL OR id > $1) AND released_at IS NULL ORDER BY id LIMIT $2",
        snapshot_position(after),
        limit,
    )
    items = [allocation_record(row).view().model_dump(mode="json") for row in rows]
    return items, str(UUID(int=rows[-1]["id"].int)) if len(rows) == limit else None


async def list_job_items(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Jobs that have not ended, or ended within the retention of events; never their commands."""
    rows = await unit.fetch(
        f"SELECT {jobs.COLUMNS} FROM job WHERE ($1::uuid IS NULL OR id > $1)"
        " AND (ended_at IS NULL OR ended_at > clock_timestamp() - make_interval(days => $3)) ORDER BY id LIMIT $2",
        snapshot_position(after),
        limit,
        KEPT_DAYS,
    )
    groups = await jobs.count_tasks(unit, [row["id"] for row in rows])
    items = [jobs.job_view(row, groups[JobId.of(row["id"])]).model_dump(mode="json") for row in rows]
    return items, str(UUID(int=rows[-1]["id"].int)) if len(rows) == limit else None


async def list_demand_items(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """What waits in each pool and only capacity holds back."""
    rows = await unit.fetch(
        "SELECT * FROM demand WHERE ($1::uuid IS NULL OR pool_id > $1) ORDER BY pool_id LIMIT $2",
        snapshot_position(after),
        limit,
    )
    items = [demand_view(row).model_dump(mode="json") for row in rows]
    return items, str(UUID(int=rows[-1]["pool_id"].int)) if len(rows) == limit else None


SNAPSHOTS: Mapping[str, SnapshotSource] = {
    "allocations": list_allocation_items,
    "live-allocations": list_live_allocation_items,
    "jobs": list_job_items,
    "demand": list_demand_items,
}
