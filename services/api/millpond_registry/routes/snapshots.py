"""Whole views for services that are new or too far behind: the same JSON that events carry, page by page by id."""

from typing import Any
from uuid import UUID

from millpond_kernel.pagination import snapshot_position
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.nodes import node_view
from millpond_registry.store import capacity, flavors, nodes, pools
from millpond_registry.store.devices import devices_of_nodes
from millpond_registry.usecases.capacity import pool_capacity

SnapshotPage = tuple[list[dict[str, Any]], str | None]
_FIRST = UUID(int=0)


async def snapshot_nodes(unit: UnitOfWork, after: str, limit: int) -> SnapshotPage:
    """Nodes, removed ones included, so that a view learns of a removal."""
    found = await nodes.list_all_nodes(unit, snapshot_position(after), limit)
    devices = await devices_of_nodes(unit, [node.id for node in found])
    items = [node_view(node, devices[node.id]).model_dump(mode="json") for node in found]
    return items, found[-1].id.hex if len(found) == limit else None


async def snapshot_pools(unit: UnitOfWork, after: str, limit: int) -> SnapshotPage:
    """Pools."""
    rows = await pools.list_pools(unit, snapshot_position(after), limit)
    items = [pools.pool_view(row).model_dump(mode="json") for row in rows]
    return items, rows[-1]["id"].hex if len(rows) == limit else None


async def snapshot_flavors(unit: UnitOfWork, after: str, limit: int) -> SnapshotPage:
    """Flavors."""
    found = await flavors.list_flavors(unit, after, limit)
    return [flavor.model_dump(mode="json") for flavor in found], found[-1].name if len(found) == limit else None


async def snapshot_capacity(unit: UnitOfWork, after: str, limit: int) -> SnapshotPage:
    """The figures of every pool."""
    rows = await capacity.list_figures(unit, snapshot_position(after) or _FIRST, limit)
    items = [pool_capacity(row).model_dump(mode="json") for row in rows]
    return items, rows[-1]["pool_id"].hex if len(rows) == limit else None
