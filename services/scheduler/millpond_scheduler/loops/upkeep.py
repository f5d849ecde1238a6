"""The control loops beside the leader: silent nodes, stops that are due, the recount, retention."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from millpond_contracts.bodies.allocations import EndReason
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop, Unwell
from millpond_scheduler.domain.freezing import FreezeRules
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.providers.log_folder import LogStore
from millpond_scheduler.store import logs
from millpond_scheduler.store.fast_failures import forget_failures
from millpond_scheduler.usecases.leases import (
    extend_all,
    find_expired,
    find_forgotten,
    give_up,
    mark_silent,
    settle_freezes,
)
from millpond_scheduler.usecases.reclaiming import find_above_limits
from millpond_scheduler.usecases.recount import recount
from millpond_scheduler.usecases.retention import BATCH, delete_ended_jobs
from millpond_scheduler.usecases.stopping import find_emptied, find_over_limit, find_overdue, stop, tell_emptied

RETENTION_SECONDS = 600.0
# Above the longest pass, and short enough that another copy takes over soon.
LOOP_LEASE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class UpkeepRules:
    """How often the loops look, and how long things are kept; from the settings."""

    lease_check_seconds: float = 2.0
    recount_seconds: float = 30.0
    log_days: int = 14
    history_days: int = 400
    freeze: FreezeRules = field(default_factory=FreezeRules)


@dataclass(slots=True)
class Upkeep:
    """The passes of the loops, with what they need."""

    database: Database
    rules: UpkeepRules
    bell: NodeBell
    logs: LogStore
    _lease_epoch: int | None = field(default=None, init=False)
    _frozen: int = field(default=0, init=False)

    async def watch_leases(self, now: datetime, lease: Lease) -> None:
        """Nodes that fell silent. Whoever begins to watch, or begins again, first gives every node its whole lease."""
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            if lease.epoch != self._lease_epoch:
                await extend_all(unit, now)
            await mark_silent(unit, now)
            frozen = await settle_freezes(unit, now, self.rules.freeze)
            found = [await find_expired(unit, now, frozen, self.rules.freeze), await find_forgotten(unit, now)]
        self._lease_epoch, self._frozen = lease.epoch, len(frozen)
        for ends in filter(None, found):
            async with self.database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                await give_up(unit, ends, now)

    def unwell(self) -> Unwell | None:
        """What a person must know of the nodes' silence."""
        if not self._frozen:
            return None
        return Unwell(
            f"in {self._frozen} pools many nodes are silent together",
            "their work is not given up for now: what ran on lost nodes is not started elsewhere",
            "look for what they share, such as a switch, and drain the nodes that are lost",
        )

    async def stop_due(self, now: datetime, lease: Lease) -> None:
        """Time limits, drains, lowered limits; each in a transaction of its own, so that locks keep their order."""
        async with self.database.begin(SYSTEM) as unit:
            stops = {
                EndReason.TIME_LIMIT: await find_over_limit(unit, now),
                EndReason.DRAINED: await find_overdue(unit, now),
                EndReason.RECLAIMED: await find_above_limits(unit, now),
            }
            emptied = await find_emptied(unit)
        for reason, ids in stops.items():
            if ids:
                async with self.database.begin(SYSTEM) as unit:
                    await check_epoch(unit, lease)
                    nodes = await stop(unit, ids, reason, now)
                await self.bell.ring(nodes)
        if emptied:
            async with self.database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                await tell_emptied(unit, emptied, now)

    async def recount(self, now: datetime, lease: Lease) -> None:
        """Guards and usage against the sum of live allocations."""
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await recount(unit)

    async def forget(self, now: datetime, lease: Lease) -> None:
        """Old logs, text before row, then old jobs; batch by batch."""
        while True:
            async with self.database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                old = await logs.list_old_logs(unit, now - timedelta(days=self.rules.log_days), BATCH)
            for allocation in old:
                await self.logs.remove(allocation)
            async with self.database.begin(SYSTEM) as unit:
                await forget_failures(unit, now - timedelta(days=1))
                await logs.delete_logs(unit, old)
                ended = await delete_ended_jobs(unit, now - timedelta(days=self.rules.history_days))
            if len(old) < BATCH and ended < BATCH:
                return


def upkeep_loops(database: Database, bell: NodeBell, store: LogStore, rules: UpkeepRules) -> Sequence[Loop]:
    """The scheduler's leased loops."""
    upkeep = Upkeep(database, rules, bell, store)
    return [
        Loop(
            "watch_leases",
            rules.lease_check_seconds,
            run_leased_pass=upkeep.watch_leases,
            lease_seconds=LOOP_LEASE_SECONDS,
            unwell=upkeep.unwell,
        ),
        Loop("stop_due", rules.lease_check_seconds, run_leased_pass=upkeep.stop_due, lease_seconds=LOOP_LEASE_SECONDS),
        Loop(
            "recount",
            rules.recount_seconds,
            run_leased_pass=upkeep.recount,
            lease_seconds=rules.recount_seconds + LOOP_LEASE_SECONDS,
        ),
        Loop(
            "forget",
            RETENTION_SECONDS,
            run_leased_pass=upkeep.forget,
            lease_seconds=RETENTION_SECONDS + LOOP_LEASE_SECONDS,
        ),
    ]
