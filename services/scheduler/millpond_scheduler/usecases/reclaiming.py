"""Reclaims made durable: the victims of every claimant are ordered to stop, all of them in one transaction or none.

Also what is above a limit that was lowered with `reclaim`.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from millpond_contracts.bodies.allocations import AllocationState, EndReason
from millpond_contracts.ids import NodeId
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.admission import Resource
from millpond_scheduler.domain.plans import Reclaim
from millpond_scheduler.domain.reclaim import choose_above
from millpond_scheduler.store import allocations
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.lives import lock_lives, write_lives
from millpond_scheduler.usecases.records import running_of
from millpond_scheduler.usecases.shard import ClaimMemory, Shard


async def commit_reclaims(unit: UnitOfWork, lease: Lease, shard: Shard, reclaims: Sequence[Reclaim]) -> set[NodeId]:
    """Orders the victims to stop and notes for whom; returns the nodes that have to be told.

    Raises:
        LeaseLost: another leader took over.
        GuardFailed: a claimant no longer waits, or a victim has ended, is being stopped, or was claimed before.
    """
    await check_epoch(unit, lease)
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    claimants = [reclaim.claimant for reclaim in reclaims]
    ids = [shard.holders[task] for reclaim in reclaims for task in reclaim.victims]
    lives = await lock_lives(unit, ids, {shard.waiting[task].facts.id for task in claimants})
    waiting = await unit.fetchval("SELECT count(*) FROM task WHERE id = ANY($1) AND state = 'pending'", claimants)
    if waiting != len(claimants):
        raise GuardFailed(f"{len(claimants) - waiting} of {len(claimants)} claimants no longer wait")
    for reclaim in reclaims:
        for task in reclaim.victims:
            life = lives.by_id[shard.holders[task]]
            record = life.record
            if not life.is_live or record.state is AllocationState.RELEASING or record.claimed_by is not None:
                raise GuardFailed(f"allocation {record.id} is {record.state} and cannot be claimed")
            record.claimed_by, life.changed = reclaim.claimant, True
    for key in ids:
        lives.by_id[key].request_stop(EndReason.RECLAIMED, now)
    await write_lives(unit, lives, now)
    return {life.record.node for life in lives.by_id.values() if life.is_live}


async def find_above_limits(unit: UnitOfWork, now: datetime) -> list[UUID]:
    """Allocations of virtual pools that hold more than their lowered limits allow, once the grace is over."""
    rows = await unit.fetch(
        "SELECT u.virtual_pool_id, u.resource, u.flavor, u.used - u.hard AS above FROM usage u"
        " JOIN virtual_pool_view v ON v.id = u.virtual_pool_id"
        " WHERE v.reclaim_at <= $1 AND NOT v.deleted AND u.used > u.hard ORDER BY 1, 2, 3",
        now,
    )
    above: dict[UUID, dict[Resource, int]] = {}
    for row in rows:
        resource = Resource(row["resource"], row["flavor"] or None)
        above.setdefault(row["virtual_pool_id"], {})[resource] = row["above"]
    found: list[UUID] = []
    for virtual_pool, amounts in above.items():
        rows = await allocations.list_live_of(unit, virtual_pool)
        by_task = {row["task_id"]: row["id"] for row in rows}
        found += [by_task[task] for task in choose_above(map(running_of, rows), amounts)]
    return found


def note_reclaims(shard: Shard, reclaims: Sequence[Reclaim]) -> None:
    """Takes into the leader's memory what was committed."""
    for reclaim in reclaims:
        victims = {shard.holders[task] for task in reclaim.victims}
        for key in victims:
            shard.note_stopping(key, None)
        shard.claims[reclaim.claimant] = ClaimMemory(victims, set(reclaim.claim.nodes), reclaim.claim.placements)
