"""The loop that keeps pools above their thresholds: looks at loans, decides, and takes each step by itself."""

from datetime import datetime

from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import log
from millpond_kernel.worker import WorkerKernel
from millpond_registry.domain.replenishment import decide_replenishment
from millpond_registry.usecases import capacity, loans


class Replenishment:
    """One pass: observe what became of loans, decide on what is there now, apply step by step."""

    def __init__(self, kernel: WorkerKernel) -> None:
        self._database = kernel.database

    async def run_pass(self, now: datetime, lease: Lease) -> None:
        """One look at all pools."""
        async with self._database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await loans.observe_loans(unit)
            await loans.forget_shortages(unit)
        async with self._database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await capacity.count_marked(unit)  # decisions on figures of a second ago would lend a busy node
        async with self._database.begin(SYSTEM) as unit:
            situation = await loans.read_situation(unit)
        for step in decide_replenishment(situation):
            log.info("replenishment_step", step=type(step).__name__, detail=str(step)[:500])
            async with self._database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                await loans.apply_step(unit, step)


def replenish_pools(kernel: WorkerKernel, interval_seconds: float) -> Loop:
    """The loop `replenish_pools`."""
    return Loop(
        "replenish_pools",
        interval_seconds,
        run_leased_pass=Replenishment(kernel).run_pass,
        lease_seconds=max(30.0, 3 * interval_seconds),
    )
