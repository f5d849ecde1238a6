"""Nodes, as the registry tells them: what there was to be held, for conservation."""

from millpond_billing.store.capacity import note_node
from millpond_contracts.events import Envelope
from millpond_contracts.events.registry import NODE_EVENTS, NodeEvent
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork


async def _on_node(unit: UnitOfWork, envelope: Envelope, event: NodeEvent) -> None:
    await note_node(unit, event.node, envelope.happened_at)


def nodes_consumer() -> Consumer:
    """Follows the registry's nodes."""
    return Consumer("capacity", "registry", dict.fromkeys(NODE_EVENTS, _on_node))
