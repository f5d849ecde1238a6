"""Pools, their capacity and nodes, as the registry tells them."""

from collections.abc import Sequence
from typing import Any

from millpond_autoscaler.store import views
from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.pools import PoolCapacity, PoolView
from millpond_contracts.events import Envelope
from millpond_contracts.events.registry import NODE_EVENTS, CapacityChanged, NodeEvent, PoolChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork


async def _on_node(unit: UnitOfWork, envelope: Envelope, event: NodeEvent) -> None:
    await views.write_node(unit, event.node)


async def _on_pool(unit: UnitOfWork, envelope: Envelope, event: PoolChanged) -> None:
    await views.write_pool(unit, event.pool, deleted=event.deleted)


async def _on_capacity(unit: UnitOfWork, envelope: Envelope, event: CapacityChanged) -> None:
    await views.write_capacity(unit, event.capacity)


async def _load_nodes(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await views.write_node(unit, NodeView.model_validate(item))


async def _load_pools(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await views.write_pool(unit, PoolView.model_validate(item), deleted=False)


async def _load_capacity(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await views.write_capacity(unit, PoolCapacity.model_validate(item))


def registry_consumer() -> Consumer:
    """Follows the registry's pools, figures and nodes."""
    return Consumer(
        views.CONSUMERS["registry"],
        "registry",
        {**dict.fromkeys(NODE_EVENTS, _on_node), PoolChanged: _on_pool, CapacityChanged: _on_capacity},
        snapshots={"nodes": _load_nodes, "pools": _load_pools, "capacity": _load_capacity},
        clear=views.clear_registry,
    )
