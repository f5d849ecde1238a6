"""A read-only copy of the leader's memory in the HTTP process, for plans: the same rows, read when somebody asks.

The copy is brought up to date by comparison: small things are read again, of nodes and allocations only the ids and
what is being stopped for whom, and whole rows only where these differ. All of one look is read in one snapshot of the
database.
"""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from millpond_contracts.ids import AllocationId, NodeId
from millpond_contracts.prices import PublishedPrices
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.store import allocations, jobs, moves, views
from millpond_scheduler.usecases.loading import (
    apply_nodes,
    hold_rows,
    load_evictions,
    load_rules,
    load_waiting,
    restore_claims,
)
from millpond_scheduler.usecases.mixes import refresh_mixes
from millpond_scheduler.usecases.records import published_prices
from millpond_scheduler.usecases.shard import Shard

# Only tasks that have waited long have nodes kept free for them, and only the first of them.
_LONG_WAITING_JOBS = 20
_TASKS_PER_GROUP = 1024


@dataclass(slots=True)
class Mirror:
    """What one process last saw. Whoever reads or refreshes it holds `lock`; a plan leaves it as it was.

    `as_of` is the database's clock at the last look, `looked_at` this machine's; None = it has to be read anew.
    """

    policy: Policy = field(default_factory=Policy)
    max_age_seconds: float = 1.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    shard: Shard = field(default_factory=Shard)
    published: list[PublishedPrices] = field(default_factory=list)
    as_of: datetime | None = None
    looked_at: float = 0.0
    nodes: dict[UUID, tuple[int, bool, datetime | None]] = field(default_factory=dict)

    def is_fresh(self) -> bool:
        """Whether it is young enough to plan on."""
        return self.as_of is not None and time.monotonic() - self.looked_at < self.max_age_seconds


async def refresh_mirror(unit: UnitOfWork, mirror: Mirror) -> None:
    """Brings the copy up to date; after a failure in between it is read anew the next time."""
    # Before anything is read: all statements then see the same instant.
    await unit.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    looked_at = time.monotonic()
    as_of: datetime = await unit.fetchval("SELECT clock_timestamp()")
    if mirror.as_of is None:
        mirror.shard, mirror.nodes = Shard(distance=mirror.policy.distance), {}
    mirror.as_of = None
    shard = mirror.shard
    await load_rules(unit, shard)
    shard.open_reservations(as_of)
    rows = await views.list_prices(unit, as_of)
    mirror.published = [prices for row in rows if (prices := published_prices(row)) is not None]
    await _refresh_nodes(unit, mirror)
    await _refresh_allocations(unit, shard)
    shard.targets = await moves.list_targets(unit)
    shard.waiting.clear()
    aged = await jobs.list_long_waiting(unit, mirror.policy.hold_after_seconds, _LONG_WAITING_JOBS, _TASKS_PER_GROUP)
    await load_waiting(unit, shard, aged)
    await load_evictions(unit, shard)
    await refresh_mixes(unit, shard, change_permille=0)
    mirror.as_of, mirror.looked_at = as_of, looked_at


async def _refresh_nodes(unit: UnitOfWork, mirror: Mirror) -> None:
    rows = await views.list_node_versions(unit)
    found = {row["node_id"]: (row["generation"], row["silent"], row["quarantined_at"]) for row in rows}
    changed = [node for node, version in found.items() if mirror.nodes.get(node) != version]
    if changed:
        apply_nodes(mirror.shard, await views.list_nodes(unit, changed))
    for node in mirror.nodes.keys() - found.keys():
        mirror.shard.snapshot.remove_node(NodeId.of(node))
    mirror.nodes = found


async def _refresh_allocations(unit: UnitOfWork, shard: Shard) -> None:
    """Releases first: a task's next attempt holds something only after the former one's release."""
    live = set(await allocations.list_live_ids(unit))
    for allocation in [each for each in shard.live if each not in live]:
        shard.release(allocation)
    fresh = [each for each in live if AllocationId.of(each) not in shard.live]
    if fresh:
        hold_rows(shard, await allocations.list_by_ids(unit, fresh))
    shard.claims.clear()
    for key, claimant in await allocations.list_stopping(unit):
        shard.note_stopping(key, claimant)
    await restore_claims(unit, shard, only_open=True)
