"""The leader's part in telling: stops not ordered, why whoever waits does, and what capacity alone holds back."""

import time
from collections.abc import Mapping, Sequence

from millpond_contracts.ids import TaskId
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_scheduler.domain.plans import Halted, Rejection
from millpond_scheduler.usecases.demand import DemandMemory, tell_demand
from millpond_scheduler.usecases.reclaiming import tell_halted
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.shard import Shard
from millpond_scheduler.usecases.verdicts import VerdictMemory, write_verdicts

# While every step places something, so many times as long as verdicts took to write passes before the next ones.
VERDICT_PAUSES = 20


class Telling:
    """What one shard's leader has told, and what it tells next.

    Args:
        seconds: between two writings of verdicts, at least.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds
        self._wrote_at = 0.0
        self._took = 0.0
        self.forget()

    def forget(self) -> None:
        """Reads anew what was told before."""
        self._verdicts, self._demand = VerdictMemory(), DemandMemory()

    async def tell_halted(self, shard: Shard, lease: Lease, halted: Sequence[Halted]) -> None:
        """Tells of stops that would have gone on for ever."""
        if halted:
            async with self._database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                await tell_halted(unit, shard, halted, microseconds_of(await self._database.now()))

    async def tell_verdicts(
        self, shard: Shard, lease: Lease, rejections: Mapping[TaskId, Rejection], *, placed: bool
    ) -> None:
        """Writes verdicts when there is something to say, every few seconds.

        Args:
            placed: work flows: then it takes a small part of the time, however long the queue.
        """
        memory = self._verdicts
        if not shard.waiting and not memory.written and not memory.blocked and memory.is_loaded:
            return
        started = time.monotonic()
        if started - self._wrote_at < max(self._seconds, VERDICT_PAUSES * self._took if placed else 0.0):
            return
        async with self._database.begin(SYSTEM) as unit:
            await write_verdicts(unit, lease, shard, rejections, memory)
        self._wrote_at, self._took = started, time.monotonic() - started

    async def tell_demand(self, shard: Shard, lease: Lease, rejections: Mapping[TaskId, Rejection]) -> None:
        """Tells what waits for capacity alone, when it has changed."""
        await tell_demand(self._database, lease, shard, rejections, self._demand)
