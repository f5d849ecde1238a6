"""What other services load when they are new or too far behind: whole views, page by page."""

from typing import Any
from uuid import UUID

from millpond_kernel.pagination import snapshot_position
from millpond_kernel.uow import UnitOfWork
from millpond_quota.store.projects import project_view
from millpond_quota.store.reservations import reservation_view
from millpond_quota.store.tenants import tenant_view
from millpond_quota.store.virtual_pools import virtual_pool_view

_FIRST = UUID(int=0)


async def snapshot_tenants(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Tenants, deleted ones included."""
    rows = await unit.fetch(
        "SELECT * FROM tenant WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2",
        snapshot_position(after) or _FIRST,
        limit,
    )
    items = [tenant_view(row).model_dump(mode="json") for row in rows]
    return items, rows[-1]["tenant_id"].hex if len(rows) == limit else None


async def snapshot_virtual_pools(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Virtual pools, deleted ones included."""
    rows = await unit.fetch(
        "SELECT * FROM virtual_pool WHERE id > $1 ORDER BY id LIMIT $2", snapshot_position(after) or _FIRST, limit
    )
    items = [virtual_pool_view(row).model_dump(mode="json") for row in rows]
    return items, rows[-1]["id"].hex if len(rows) == limit else None


async def snapshot_reservations(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Reservations, cancelled ones included."""
    rows = await unit.fetch(
        "SELECT * FROM reservation WHERE id > $1 ORDER BY id LIMIT $2", snapshot_position(after) or _FIRST, limit
    )
    items = [reservation_view(row).model_dump(mode="json") for row in rows]
    return items, rows[-1]["id"].hex if len(rows) == limit else None


async def snapshot_projects(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Projects; whoever loads them forgets those that are not among them."""
    rows = await unit.fetch(
        "SELECT * FROM project WHERE id > $1 AND NOT deleted ORDER BY id LIMIT $2",
        snapshot_position(after) or _FIRST,
        limit,
    )
    items = [project_view(row).model_dump(mode="json") for row in rows]
    return items, rows[-1]["id"].hex if len(rows) == limit else None
