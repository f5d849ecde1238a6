"""The present state for other services that are new or too far behind: allocations and jobs, in pages by id."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.ids import (
    AllocationId,
    JobId,
    NodeId,
    PoolId,
    PriceVersionId,
    ProjectId,
    TaskId,
    TenantId,
    TypedId,
    VirtualPoolId,
)
from millpond_kernel.pagination import snapshot_position
from millpond_kernel.uow import UnitOfWork
from millpond_kernel.watching import SnapshotSource
from millpond_scheduler.store import jobs
from millpond_scheduler.store.demand import demand_view

# As long as events are kept: whoever is further behind starts from what is here.
KEPT_DAYS = 35

_INSTANTS = ("bound_at", "active_at", "stop_requested_at", "waived_from", "released_at")


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
    return [allocation_item(row) for row in rows], _following(rows, limit)


async def list_live_allocation_items(
    unit: UnitOfWork, after: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Allocations that hold something: what another service's recount compares with."""
    rows = await unit.fetch(
        "SELECT * FROM allocation WHERE ($1::uuid IS NULL OR id > $1) AND released_at IS NULL ORDER BY id LIMIT $2",
        snapshot_position(after),
        limit,
    )
    return [allocation_item(row) for row in rows], _following(rows, limit)


async def list_live_generation_items(
    unit: UnitOfWork, after: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Allocations that hold something, and how new each is: enough to find what differs, a fraction of the rest."""
    rows = await unit.fetch(
        "SELECT id, generation FROM allocation WHERE ($1::uuid IS NULL OR id > $1) AND state <> 'released'"
        " ORDER BY id LIMIT $2",
        snapshot_position(after),
        limit,
    )
    items = [{"allocation_id": str(AllocationId.of(row["id"])), "generation": row["generation"]} for row in rows]
    return items, _following(rows, limit)


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
    return items, _following(rows, limit)


async def list_demand_items(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """What waits in each pool and only capacity holds back."""
    rows = await unit.fetch(
        "SELECT * FROM demand WHERE ($1::uuid IS NULL OR pool_id > $1) ORDER BY pool_id LIMIT $2",
        snapshot_position(after),
        limit,
    )
    items = [demand_view(row).model_dump(mode="json") for row in rows]
    return items, str(UUID(int=rows[-1]["pool_id"].int)) if len(rows) == limit else None


def _following(rows: Sequence[asyncpg.Record], limit: int) -> str | None:
    """Where the next page begins, if this one is full."""
    return str(UUID(int=rows[-1]["id"].int)) if len(rows) == limit else None


def allocation_item(row: asyncpg.Record) -> dict[str, Any]:
    """An `AllocationView` as JSON has it, from a row. Not by the model: a hundred thousand are read at a time."""
    return {
        "allocation_id": str(AllocationId.of(row["id"])),
        "job_id": str(JobId.of(row["job_id"])),
        "job_name": row["job_name"],
        "task_id": str(TaskId.of(row["task_id"])),
        "group": row["group_name"],
        "index": row["index"],
        "attempt": row["attempt"],
        "tenant_id": str(TenantId.of(row["tenant_id"])),
        "project_id": _text(ProjectId, row["project_id"]),
        "virtual_pool_id": str(VirtualPoolId.of(row["virtual_pool_id"])),
        "pool_id": str(PoolId.of(row["pool_id"])),
        "node_id": str(NodeId.of(row["node_id"])),
        "cpu_milli": row["cpu_milli"],
        "memory_mib": row["memory_mib"],
        "devices": row["devices"],
        "term": row["term"],
        "price_version_id": _text(PriceVersionId, row["price_version_id"]),
        "labels": row["labels"],
        "state": row["state"],
        "epoch": row["epoch"],
        **{name: _instant(row[name]) for name in _INSTANTS},
        "reason": row["reason"],
        "exit_code": row["exit_code"],
        "generation": row["generation"],
    }


def _text(kind: type[TypedId], key: UUID | None) -> str | None:
    return None if key is None else str(kind.of(key))


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")


SNAPSHOTS: Mapping[str, SnapshotSource] = {
    "allocations": list_allocation_items,
    "live-allocations": list_live_allocation_items,
    "live-generations": list_live_generation_items,
    "jobs": list_job_items,
    "demand": list_demand_items,
}
