"""Nodes, as the registry tells them: what there was to be held, for conservation."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from millpond_billing.store.capacity import note_node
from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.events import Envelope
from millpond_contracts.events.registry import NODE_EVENTS, NodeEvent
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork


async def _on_node(unit: UnitOfWork, envelope: Envelope, event: NodeEvent) -> None:
    await note_node(unit, event.node, envelope.happened_at)


async def _load_nodes(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    # When each change happened is not known any more: it counts from now on.
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    for item in items:
        await note_node(unit, NodeView.model_validate(item), now)


def nodes_consumer() -> Consumer:
    """Follows the registry's nodes."""
    return Consumer("capacity", "registry", dict.fromkeys(NODE_EVENTS, _on_node), snapshots={"nodes": _load_nodes})
