"""The scheduler's word: what is held of which node, and which node is empty."""

from collections.abc import Sequence
from typing import Any

from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.events import Envelope
from millpond_contracts.events.scheduler import AllocationBound, AllocationReleased, NodeEmptied, NodeQuarantined
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_registry.store.allocations import CONSUMER, clear_allocations
from millpond_registry.usecases.capacity import take_allocation
from millpond_registry.usecases.nodes import take_emptied, take_quarantined


async def _on_allocation(unit: UnitOfWork, envelope: Envelope, event: AllocationBound | AllocationReleased) -> None:
    await take_allocation(unit, event.allocation)


async def _on_emptied(unit: UnitOfWork, envelope: Envelope, event: NodeEmptied) -> None:
    await take_emptied(unit, event)


async def _on_quarantined(unit: UnitOfWork, envelope: Envelope, event: NodeQuarantined) -> None:
    await take_quarantined(unit, event)


async def _load_allocations(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await take_allocation(unit, AllocationView.model_validate(item))


def scheduler_consumer() -> Consumer:
    """Follows the scheduler's allocations and answers to drains."""
    return Consumer(
        CONSUMER,
        "scheduler",
        {
            AllocationBound: _on_allocation,
            AllocationReleased: _on_allocation,
            NodeEmptied: _on_emptied,
            NodeQuarantined: _on_quarantined,
        },
        snapshots={"allocations": _load_allocations},
        clear=clear_allocations,
    )
