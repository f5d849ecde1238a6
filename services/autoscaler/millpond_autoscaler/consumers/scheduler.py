"""What waits in each pool and only capacity holds back, as the scheduler tells it."""

from collections.abc import Sequence
from typing import Any

from millpond_autoscaler.store import views
from millpond_contracts.bodies.scaling import PoolDemand
from millpond_contracts.events import Envelope
from millpond_contracts.events.scheduler import DemandChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork


async def _on_demand(unit: UnitOfWork, envelope: Envelope, event: DemandChanged) -> None:
    await views.write_demand(unit, event.demand)


async def _load_demand(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await views.write_demand(unit, PoolDemand.model_validate(item))


def scheduler_consumer() -> Consumer:
    """Follows the scheduler's demand."""
    return Consumer(
        views.CONSUMERS["scheduler"],
        "scheduler",
        {DemandChanged: _on_demand},
        snapshots={"demand": _load_demand},
        clear=views.clear_scheduler,
    )
