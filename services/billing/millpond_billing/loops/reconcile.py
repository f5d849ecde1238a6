"""Compares what billing meters with what the scheduler says is held, repairs, and raises an alarm on a difference.

A difference counts when it is there in two passes in a row and metering has meanwhile applied everything that the
scheduler published: an event on its way is no drift.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime

from millpond_billing.loops.due import is_metering_complete
from millpond_billing.store.allocations import list_generations, list_held_ids
from millpond_billing.usecases.metering import take_allocations
from millpond_contracts.bodies.jobs import AllocationView
from millpond_contracts.events.billing import MeteringDriftFound
from millpond_contracts.ids import AllocationId
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.streams import read_snapshot


@dataclass(slots=True)
class Reconciler:
    """One pass after the other; `suspects` = allocation -> generation that was missing in the last pass."""

    database: Database
    scheduler: ServiceClient
    suspects: dict[AllocationId, int] = field(default_factory=dict)
    lost: set[AllocationId] = field(default_factory=set)
    told: set[AllocationId] = field(default_factory=set)

    async def run(self, now: datetime, lease: Lease) -> None:
        """One pass: compare page by page, repair what was missing before as well, remember the rest."""
        if not await is_metering_complete(self.database, self.scheduler):
            return
        async with self.database.begin(SYSTEM) as unit:
            lost = set(await list_held_ids(unit))
        missing: dict[AllocationId, int] = {}
        try:
            async for page in self._pages():
                lost -= {one.allocation_id for one in page}
                missing |= await self._compare(page, lease)
        except ServiceAway as error:
            log.info("reconcile_waits", service="billing", error=str(error))
            return
        self.suspects = missing
        await self._tell_lost(lost & self.lost, lease)
        self.lost = lost

    async def _pages(self) -> AsyncIterator[list[AllocationView]]:
        async for _, items in read_snapshot(self.scheduler, "scheduler", "allocations"):
            yield [AllocationView.model_validate(item) for item in items]

    async def _compare(self, page: list[AllocationView], lease: Lease) -> dict[AllocationId, int]:
        async with self.database.begin(SYSTEM) as unit:
            known = await list_generations(unit, [one.allocation_id for one in page])
        behind = [one for one in page if known.get(one.allocation_id, 0) < one.generation]
        missing: dict[AllocationId, int] = {}
        for one in behind:
            was_missing = self.suspects.get(one.allocation_id)
            if was_missing is not None and known.get(one.allocation_id, 0) < was_missing:
                await self._repair(one, known.get(one.allocation_id), lease)
            else:
                missing[one.allocation_id] = one.generation
        return missing

    async def _repair(self, allocation: AllocationView, known: int | None, lease: Lease) -> None:
        detail = f"metered generation {known}, the scheduler has {allocation.generation}"
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await take_allocations(unit, [allocation])
            unit.emit(
                MeteringDriftFound(
                    allocation=str(allocation.allocation_id), detail=detail, generation=allocation.generation
                )
            )
        _alarm(allocation.allocation_id, detail)

    async def _tell_lost(self, lost: set[AllocationId], lease: Lease) -> None:
        """Tells once of what is metered as held but unknown to the scheduler; only a person can help."""
        for key in lost - self.told:
            detail = "metered as held, but the scheduler does not know it"
            async with self.database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                generation = (await list_generations(unit, [key])).get(key, 0)
                unit.emit(MeteringDriftFound(allocation=str(key), detail=detail, generation=generation))
            _alarm(key, detail)
        self.told |= lost


def _alarm(key: AllocationId, detail: str) -> None:
    ALARMS.labels("billing", "metering_drift").inc()
    log.error("metering_drift", service="billing", allocation=str(key), detail=detail)


def reconcile_loop(database: Database, scheduler: ServiceClient, interval_seconds: float) -> Loop:
    """One holder at a time; its lease outlasts a slow pass."""
    reconciler = Reconciler(database, scheduler)
    return Loop(
        "reconcile", interval_seconds, run_leased_pass=reconciler.run, lease_seconds=max(60.0, 2 * interval_seconds)
    )
