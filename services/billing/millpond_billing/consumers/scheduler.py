"""Allocations, as the scheduler tells them: what is metered."""

from collections.abc import Sequence
from typing import Any

from millpond_billing.store.cursors import METERING
from millpond_billing.usecases.metering import take_allocations
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.events.scheduler import ALLOCATION_EVENTS, AllocationEvent
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork


async def _on_allocations(unit: UnitOfWork, events: Sequence[AllocationEvent]) -> None:
    await take_allocations(unit, [event.allocation for event in events])


async def _load_allocations(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    await take_allocations(unit, [AllocationView.model_validate(item) for item in items])


def allocations_consumer() -> Consumer:
    """Follows the scheduler's allocations."""
    return Consumer(
        METERING,
        "scheduler",
        batch_handlers=dict.fromkeys(ALLOCATION_EVENTS, _on_allocations),
        snapshots={"allocations": _load_allocations},
    )
