"""The loop that keeps capacity: marked nodes at every pass, everything afresh once in a while."""

from datetime import datetime, timedelta
from typing import Any

from millpond_kernel.clients import ServiceAway
from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import log
from millpond_kernel.streams import read_cursor, read_snapshot
from millpond_kernel.worker import WorkerKernel
from millpond_registry.store import allocations, capacity
from millpond_registry.usecases import capacity as usecases

RELEASED_HOURS = 24


class CapacityCount:
    """Counts what changed at each pass; recounts, pool by pool, when the time has come."""

    def __init__(self, kernel: WorkerKernel, recount_seconds: float) -> None:
        self._kernel = kernel
        self._recount_every = timedelta(seconds=recount_seconds)
        self._next_recount: datetime | None = None

    async def run_pass(self, now: datetime, lease: Lease) -> None:
        """Counts the marked nodes, and everything when a recount is due."""
        async with self._kernel.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await usecases.count_marked(unit)
        if self._next_recount is None or now >= self._next_recount:
            self._next_recount = now + self._recount_every
            await self.recount(lease)

    async def recount(self, lease: Lease) -> None:
        """Compares allocations with the scheduler and every pool's figures with a fresh count."""
        await self._compare_with_scheduler(lease)
        async with self._kernel.database.begin(SYSTEM) as unit:
            pool_ids = await capacity.all_pool_ids(unit)
            await allocations.forget_released(unit, RELEASED_HOURS)
        for pool_id in pool_ids:
            async with self._kernel.database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                await usecases.count_marked(unit)
                if await usecases.recount_pool(unit, pool_id):
                    log.warning("capacity_drift_repaired", pool=str(pool_id))

    async def _compare_with_scheduler(self, lease: Lease) -> None:
        try:
            as_of, live = await self._scheduler_allocations()
        except ServiceAway as error:
            log.debug("allocations_not_compared", error=str(error))
            return
        async with self._kernel.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            # A view that is behind differs for that reason alone.
            if await read_cursor(unit, allocations.CONSUMER, "scheduler") >= as_of:
                wrong = await usecases.compare_allocations(unit, live)
                if wrong:
                    log.warning("allocations_repaired", rows=wrong)

    async def _scheduler_allocations(self) -> tuple[int, list[dict[str, Any]]]:
        as_of: list[int] = []
        live: list[dict[str, Any]] = []
        async for seq, items in read_snapshot(self._kernel.clients["scheduler"], "scheduler", "live-allocations"):
            as_of.append(seq)
            live += items
        return min(as_of), live


def count_capacity(kernel: WorkerKernel, interval_seconds: float, recount_seconds: float) -> Loop:
    """The loop `count_capacity`."""
    return Loop(
        "count_capacity",
        interval_seconds,
        run_leased_pass=CapacityCount(kernel, recount_seconds).run_pass,
        lease_seconds=max(30.0, 3 * interval_seconds),
    )
