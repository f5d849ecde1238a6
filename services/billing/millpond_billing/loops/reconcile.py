"""Compares what billing meters with what the scheduler says is held, repairs, and raises an alarm on a difference.

A difference counts when it is there in two passes in a row and metering has meanwhile applied everything that the
scheduler published: an event on its way is no drift.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from millpond_billing.loops.following import why_behind
from millpond_billing.store.allocations import list_generations, list_held_ids
from millpond_billing.usecases.metering import take_allocations
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.events.billing import MeteringDriftFound
from millpond_contracts.ids import AllocationId
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.streams import read_snapshot
from millpond_kernel.uow import UnitOfWork


@dataclass(slots=True)
class Reconciler:
    """One pass after the other.

    `missing` = what the last pass found behind: allocation -> the scheduler's generation. `ended` = what it found
    metered as held and not live any more. `told` = what no snapshot knows, told of once.
    """

    database: Database
    scheduler: ServiceClient
    patience_seconds: float = 5.0
    missing: dict[AllocationId, int] = field(default_factory=dict)
    ended: set[AllocationId] = field(default_factory=set)
    told: set[AllocationId] = field(default_factory=set)

    async def run(self, now: datetime, lease: Lease) -> None:
        """One pass: compare page by page, repair what was different before as well, remember the rest."""
        behind = await why_behind(self.database, self.scheduler, self.patience_seconds)
        if behind is not None:
            log.info("reconcile_waits", service="billing", reason=behind)
            return
        try:
            await self._pass(lease)
        except ServiceAway as error:
            log.info("reconcile_waits", service="billing", reason=str(error))

    async def _pass(self, lease: Lease) -> None:
        async with self.database.begin(SYSTEM) as unit:
            ended = set(await list_held_ids(unit))
        missing: dict[AllocationId, int] = {}
        late: set[AllocationId] = set()
        async for _, items in read_snapshot(self.scheduler, "scheduler", "live-generations"):
            live = {AllocationId.parse(item["allocation_id"]): int(item["generation"]) for item in items}
            ended -= live.keys()
            for key, metered in (await self._find_behind(live)).items():
                if metered < self.missing.get(key, 0):
                    late.add(key)
                else:
                    missing[key] = live[key]
        again = ended & self.ended
        if late:
            await self._repair_late(late, lease)
        if again:
            await self._repair_ended(again, lease)
        self.missing, self.ended = missing, ended - again

    async def _pages(self, noun: str) -> AsyncIterator[list[AllocationView]]:
        async for _, items in read_snapshot(self.scheduler, "scheduler", noun):
            yield [AllocationView.model_validate(item) for item in items]

    async def _find_behind(self, live: Mapping[AllocationId, int]) -> dict[AllocationId, int]:
        """Those of which an earlier generation is metered, with that; 0 = none is."""
        async with self.database.begin(SYSTEM) as unit:
            known = await list_generations(unit, list(live))
        return {key: known.get(key, 0) for key, generation in live.items() if known.get(key, 0) < generation}

    async def _repair_late(self, late: set[AllocationId], lease: Lease) -> None:
        """Repairs what was behind before as well and still is: the events were missed."""
        async for page in self._pages("live-allocations"):
            async with self.database.begin(SYSTEM) as unit:
                known = await list_generations(unit, [one.allocation_id for one in page])
            for one in page:
                metered = known.get(one.allocation_id, 0)
                if one.allocation_id in late and metered < one.generation:
                    await self._repair(one, metered, lease)

    async def _repair(self, allocation: AllocationView, metered: int, lease: Lease) -> None:
        detail = f"metered generation {metered}, the scheduler has {allocation.generation}"
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await take_allocations(unit, [allocation])
            _raise_alarm(unit, allocation.allocation_id, allocation.generation, detail)

    async def _repair_ended(self, ended: set[AllocationId], lease: Lease) -> None:
        """Repairs what is metered as held and is not: its end was missed. For the unknown: a person."""
        left = dict.fromkeys(ended, 0)
        async with self.database.begin(SYSTEM) as unit:
            left |= await list_generations(unit, list(ended))
        async for page in self._pages("allocations"):
            for one in page:
                metered = left.get(one.allocation_id)
                if metered is not None and metered < one.generation:
                    await self._repair(one, metered, lease)
                    del left[one.allocation_id]
        for key in left.keys() - self.told:
            async with self.database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                _raise_alarm(unit, key, left[key], "metered as held, but the scheduler does not know it")
        self.told |= left.keys()


def _raise_alarm(unit: UnitOfWork, key: AllocationId, generation: int, detail: str) -> None:
    unit.emit(MeteringDriftFound(allocation=str(key), detail=detail, generation=generation))
    ALARMS.labels("billing", "metering_drift").inc()
    log.error("metering_drift", service="billing", allocation=str(key), detail=detail)


def reconcile_loop(database: Database, scheduler: ServiceClient, interval_seconds: float) -> Loop:
    """One holder at a time; its lease outlasts a slow pass."""
    reconciler = Reconciler(database, scheduler)
    return Loop(
        "reconcile", interval_seconds, run_leased_pass=reconciler.run, lease_seconds=max(60.0, 2 * interval_seconds)
    )
