"""Tells how much work waits for capacity alone, by pool and shape: only what changed, at most once a second."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from millpond_contracts.bodies.scaling import DemandShape
from millpond_contracts.events.scheduler import DemandChanged
from millpond_contracts.ids import PoolId, TaskId
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_scheduler.domain.demand import sum_demand
from millpond_scheduler.domain.plans import Rejection
from millpond_scheduler.store import demand as rows_of_demand
from millpond_scheduler.usecases.shard import Shard

TELL_SECONDS = 1.0


@dataclass(slots=True)
class DemandMemory:
    """What was told last, None = not read yet, and when somebody looked."""

    told: dict[PoolId, tuple[DemandShape, ...]] | None = None
    looked_at: float = field(default=-TELL_SECONDS)


async def tell_demand(
    database: Database, lease: Lease, shard: Shard, rejections: Mapping[TaskId, Rejection], memory: DemandMemory
) -> None:
    """Writes and publishes the demand of every pool where it is another than was told last.

    Raises:
        LeaseLost: another leader took over.
    """
    if (memory.told == {} and not rejections) or time.monotonic() - memory.looked_at < TELL_SECONDS:
        return
    memory.looked_at = time.monotonic()
    found = sum_demand(shard.queue(), rejections, shard.virtual_pools)
    if memory.told is not None and found == memory.told:
        return
    async with database.begin(SYSTEM) as unit:
        await check_epoch(unit, lease)
        told = await rows_of_demand.list_told(unit) if memory.told is None else memory.told
        pools = told.keys() | found.keys()
        changed = {pool: found.get(pool, ()) for pool in pools if told.get(pool, ()) != found.get(pool, ())}
        if changed:
            now: datetime = await unit.fetchval("SELECT clock_timestamp()")
            for demand in await rows_of_demand.write_demand(unit, changed, now):
                unit.emit(DemandChanged(demand=demand), now)
    memory.told = found
