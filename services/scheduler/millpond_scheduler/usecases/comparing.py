"""The leader's memory compared with the rows: what differs twice in a row is an alarm, and everything is read anew.

The agents' own reports are compared with the rows at each poll, and counters with allocations by the recount.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from millpond_contracts.events.scheduler import UsageDriftFound
from millpond_contracts.ids import AllocationId, NodeId, TaskId
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import allocations, jobs
from millpond_scheduler.store.guards import list_free
from millpond_scheduler.usecases.loading import refresh_shard
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.shard import Shard

Id = TypeVar("Id", bound=UUID)

COMPARE_SECONDS = 60.0
# Something that is changed before it is noted for the leader is no difference any more by then.
LOOK_AGAIN_SECONDS = 1.0
# So many differences are told one by one; all are repaired.
_MOST_TOLD = 20


@dataclass(slots=True)
class MemoryCheck:
    """When the leader's memory was looked at last, and what differed then."""

    seconds: float = COMPARE_SECONDS
    _at: float = field(default_factory=time.monotonic)
    _suspects: frozenset[str] = frozenset()

    def is_due(self) -> bool:
        """Whether it is time; sooner where something differed."""
        pause = min(LOOK_AGAIN_SECONDS, self.seconds) if self._suspects else self.seconds
        return time.monotonic() - self._at >= pause

    async def find_drift(self, database: Database, lease: Lease, shard: Shard) -> bool:
        """Whether anything differs now that differed at the last look too; told as alarm and event if so.

        Raises:
            LeaseLost: another leader took over.
        """
        async with database.begin(SYSTEM) as unit:
            # Changes and rows as of one instant: what others commit meanwhile is no difference.
            await unit.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await refresh_shard(unit, lease, shard)
            found = await list_differences(unit, shard)
            certain = {counter: found[counter] for counter in sorted(self._suspects & found.keys())}
            if certain:
                await check_epoch(unit, lease)
                await _tell(unit, certain)
        self._at, self._suspects = time.monotonic(), frozenset() if certain else frozenset(found)
        return bool(certain)


async def list_differences(unit: UnitOfWork, shard: Shard) -> dict[str, tuple[int, int]]:
    """What is remembered otherwise than it is: by name, as it is and as remembered (1 = there, 0 = not; or amounts)."""
    differences: dict[str, tuple[int, int]] = {}
    live = {AllocationId.of(each) for each in await allocations.list_live_ids(unit)}
    waiting = {TaskId.of(each) for each in await jobs.list_waiting_ids(unit)}
    differences |= _compare_ids("allocation", live, set(shard.live))
    differences |= _compare_ids("waiting", waiting, set(shard.waiting))
    columns = shard.snapshot.columns
    for row in await list_free(unit):
        node = NodeId.of(row["node_id"])
        at = shard.snapshot.find_row(node)
        if at is None:
            continue
        remembered = {
            "cpu_milli": int(columns.cpu_free[at]),
            "memory_mib": int(columns.memory_free[at]),
            "device_milli": int(columns.device_milli_free[at].sum()),
        }
        for name, amount in remembered.items():
            if row[name] != amount:
                differences[f"memory/node/{node}/{name}"] = (row[name], amount)
    return differences


def _compare_ids(kind: str, there: set[Id], remembered: set[Id]) -> dict[str, tuple[int, int]]:
    missing = {f"memory/{kind}/{each}": (1, 0) for each in there - remembered}
    return missing | {f"memory/{kind}/{each}": (0, 1) for each in remembered - there}


async def _tell(unit: UnitOfWork, differences: Mapping[str, tuple[int, int]]) -> None:
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    ALARMS.labels("scheduler", "memory_drift").inc()
    log.error("memory_drift_found", differences=len(differences), some=list(differences)[:_MOST_TOLD])
    for counter, (expected, found) in list(differences.items())[:_MOST_TOLD]:
        unit.emit(
            UsageDriftFound(counter=counter, expected=expected, found=found, generation=microseconds_of(now)), now
        )
