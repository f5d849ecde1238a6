"""The scheduler's word: what is held of which node, and which node is empty."""

from collections.abc import Sequence
from typing import Any

from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.events import Envelope
from millpond_contracts.events.scheduler import AllocationBound, AllocationReleased, NodeEmptied, NodeQuarantined
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_registry.store.allocations import CONSUMER, clear_allocations
from millpond_registry.usecases.capacity import take_allocations
from millpond_registry.usecases.nodes import take_emptied, take_quarantined


async def _on_allocations(unit: UnitOfWork, events: Sequence[AllocationBound | AllocationReleased]) -> None:
    await take_allocations(unit, [event.allocation for event in events])


async def _on_emptied(unit: UnitOfWork, envelope: Envelope, event: NodeEmptied) -> None:
    await take_emptied(unit, event)


async def _on_quarantined(unit: UnitOfWork, envelope: Envelope, event: NodeQuarantined) -> None:
    await take_quarantined(unit, event)


async def _load_allocations(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    await take_allocations(unit, [AllocationView.model_validate(item) for item in items])


def scheduler_consumer() -> Consumer:
    """Follows the scheduler's allocations and answers to drains."""
    return Consumer(
        CONSUMER,
        "scheduler",
        {NodeEmptied: _on_emptied, NodeQuarantined: _on_quarantined},
        batch_handlers=dict.fromkeys((AllocationBound, AllocationReleased), _on_allocations),
        snapshots={"allocations": _load_allocations},
        clear=clear_allocations,
    )
