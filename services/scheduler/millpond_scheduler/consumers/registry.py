"""Follows the registry: nodes and pools."""

from collections.abc import Callable, Sequence
from typing import Any

from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.events import Envelope
from millpond_contracts.events.registry import NODE_EVENTS, NodeEvent, PoolChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.usecases.nodes import take_node, take_pool


def registry_consumer(after_batch: Callable[[], None]) -> Consumer:
    """The consumer of the registry's events; `after_batch` wakes the leader of this process."""
    return Consumer(
        name="nodes",
        publisher="registry",
        handlers={**dict.fromkeys(NODE_EVENTS, _on_node), PoolChanged: _on_pool},
        snapshots={"pools": _load_pools, "nodes": _load_nodes},
        after_batch=after_batch,
        clear=_clear,
    )


async def _clear(unit: UnitOfWork) -> None:
    # The counters of the nodes stay: they count allocations, which are this service's own.
    await unit.execute("DELETE FROM node_view")
    await unit.execute("DELETE FROM pool_view")


async def _on_node(unit: UnitOfWork, envelope: Envelope, event: NodeEvent) -> None:
    await take_node(unit, event.node)


async def _on_pool(unit: UnitOfWork, envelope: Envelope, event: PoolChanged) -> None:
    await take_pool(unit, event.pool, deleted=event.deleted)


async def _load_nodes(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await take_node(unit, NodeView.model_validate(item))


async def _load_pools(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await take_pool(unit, PoolView.model_validate(item))
