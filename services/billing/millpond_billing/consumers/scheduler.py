"""Allocations, as the scheduler tells them: what is metered."""

from collections.abc import Sequence
from typing import Any

from millpond_billing.usecases.metering import note_allocation
from millpond_contracts.bodies.jobs import AllocationView
from millpond_contracts.events import Envelope
from millpond_contracts.events.scheduler import ALLOCATION_EVENTS, AllocationEvent
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork


async def _on_allocation(unit: UnitOfWork, envelope: Envelope, event: AllocationEvent) -> None:
    await note_allocation(unit, event.allocation)


async def _load_allocations(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await note_allocation(unit, AllocationView.model_validate(item))


def allocations_consumer() -> Consumer:
    """Follows the scheduler's allocations."""
    return Consumer(
        "metering",
        "scheduler",
        dict.fromkeys(ALLOCATION_EVENTS, _on_allocation),
        snapshots={"allocations": _load_allocations},
    )
