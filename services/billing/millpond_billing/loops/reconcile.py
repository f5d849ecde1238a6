"""Compares what billing meters with what the scheduler says is held, repairs, and raises an alarm on a difference."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from millpond_billing.store.allocations import list_live_generations
from millpond_billing.usecases.metering import note_allocation
from millpond_contracts.bodies.jobs import AllocationView
from millpond_contracts.events.billing import MeteringDriftFound
from millpond_kernel.clients import ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import ALARMS, log

# A difference younger than this is an event on its way, not drift.
SETTLE = timedelta(seconds=20)


def reconcile_loop(
    database: Database, scheduler: ServiceClient, interval_seconds: float, is_caught_up: Callable[[], bool]
) -> Loop:
    """Runs while the metering consumer has no lag; one holder at a time."""

    async def run(now: datetime, lease: Lease) -> None:
        if not is_caught_up():
            return
        live = await _live_allocations(scheduler)
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            known = await list_live_generations(unit)
            for allocation in live.values():
                changed_at = allocation.released_at or allocation.active_at or allocation.bound_at
                if known.get(str(allocation.allocation_id)) == allocation.generation or changed_at > now - SETTLE:
                    continue
                if not await _is_behind(unit, allocation):
                    continue
                await note_allocation(unit, allocation)
                _raise_alarm(unit, allocation, known.get(str(allocation.allocation_id)))

    return Loop("reconcile", interval_seconds, run_leased_pass=run, lease_seconds=max(60.0, 2 * interval_seconds))


async def _is_behind(unit: Any, allocation: AllocationView) -> bool:
    generation = await unit.fetchval(
        "SELECT generation FROM allocation_view WHERE allocation_id = $1", allocation.allocation_id
    )
    return generation is None or int(generation) < allocation.generation


def _raise_alarm(unit: Any, allocation: AllocationView, known: int | None) -> None:
    detail = f"metered generation {known}, the scheduler has {allocation.generation}"
    unit.emit(
        MeteringDriftFound(allocation=str(allocation.allocation_id), detail=detail, generation=allocation.generation)
    )
    ALARMS.labels("billing", "metering_drift").inc()
    log.error("metering_drift", allocation=str(allocation.allocation_id), detail=detail)


async def _live_allocations(scheduler: ServiceClient) -> dict[str, AllocationView]:
    found: dict[str, AllocationView] = {}
    after = ""
    while True:
        page = await scheduler.get_json("/internal/v1/snapshot/scheduler/allocations", {"after": after, "limit": 500})
        for item in page["items"]:
            allocation = AllocationView.model_validate(item)
            found[str(allocation.allocation_id)] = allocation
        if not page["next"]:
            return found
        after = str(page["next"])
