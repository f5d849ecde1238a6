"""Stops for others made durable: the victims of every claimant are ordered to stop, all in one transaction or none.

Also what is above a limit that was lowered with `reclaim`.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from millpond_contracts.bodies.allocations import AllocationState, EndReason
from millpond_contracts.events.scheduler import PreemptionHalted
from millpond_contracts.ids import JobId, NodeId, PoolId, TenantId
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.admission import Resource
from millpond_scheduler.domain.plans import Halted, Reclaim
from millpond_scheduler.domain.preemption import HOUR_US, Eviction
from millpond_scheduler.domain.running import choose_above
from millpond_scheduler.store import allocations
from millpond_scheduler.store.changes import ChangeKind
from millpond_scheduler.store.evictions import add_evictions
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.adopting import RunningReader
from millpond_scheduler.usecases.lives import lock_lives, write_lives
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.shard import ClaimMemory, Shard


async def commit_reclaims(
    unit: UnitOfWork, lease: Lease, shard: Shard, reclaims: Sequence[Reclaim], reason: EndReason | None = None
) -> set[NodeId]:
    """Orders the victims to stop and notes for whom; returns the nodes that have to be told.

    Args:
        reason: why they stop; None = reclaimed, or preempted where claimant and victim are of one virtual pool.

    Raises:
        LeaseLost: another leader took over.
        GuardFailed: a claimant no longer waits, a victim has ended, is being stopped, or was claimed before, or the
            rules of virtual pools are not as planned.
    """
    await check_epoch(unit, lease)
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    if await unit.fetchval("SELECT EXISTS (SELECT 1 FROM change WHERE kind = $1)", ChangeKind.VIRTUAL_POOL.value):
        raise GuardFailed("limits or rules of virtual pools changed since the plan")
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
    for reclaim in reclaims:
        own = shard.waiting[reclaim.claimant].queued.virtual_pool
        for task in reclaim.victims:
            life = lives.by_id[shard.holders[task]]
            is_own = life.record.virtual_pool == own
            # Once tasks can keep a checkpoint it is asked for here, and the order to stop follows its answer.
            life.request_stop(reason or (EndReason.PREEMPTED if is_own else EndReason.RECLAIMED), now)
    await write_lives(unit, lives, now)
    pairs = [(task, reclaim.claimant) for reclaim in reclaims for task in reclaim.victims]
    await add_evictions(unit, ids, [task for task, _ in pairs], [claimant for _, claimant in pairs], now)
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
        running = map(RunningReader().read, rows)
        found += [by_task[task] for task in choose_above(running, amounts, microseconds_of(now))]
    return found


def note_reclaims(shard: Shard, reclaims: Sequence[Reclaim], now_us: int) -> None:
    """Takes into the leader's memory what was committed."""
    for reclaim in reclaims:
        shard.evictions += [Eviction(victim, reclaim.claimant, now_us) for victim in reclaim.victims]
        victims = {shard.holders[task] for task in reclaim.victims}
        for key in victims:
            shard.note_stopping(key, None)
        shard.claims[reclaim.claimant] = ClaimMemory(victims, set(reclaim.claim.nodes), reclaim.claim.placements)


async def tell_halted(unit: UnitOfWork, shard: Shard, halted: Sequence[Halted], now_us: int) -> None:
    """Raises an alarm for stops that were not ordered because they would go on for ever: once an hour for each pair."""
    shard.told = {key: at for key, at in shard.told.items() if now_us - at < HOUR_US}
    for number, each in enumerate(halted):
        key = frozenset({each.claimant, each.victim})
        waiting, victim = shard.waiting.get(each.claimant), shard.holders.get(each.victim)
        if key in shard.told or waiting is None or victim is None:
            continue
        shard.told[key] = now_us
        row = await unit.fetchrow("SELECT job_id, tenant_id, pool_id FROM allocation WHERE id = $1", victim)
        assert row is not None, "it was held a moment ago"
        job = JobId.of(row["job_id"])
        log.error("preemption_halted", claimant=str(waiting.facts.id), victim=str(job), why=each.why.value)
        ALARMS.labels("scheduler", "preemption_halted").inc()
        unit.emit(
            PreemptionHalted(
                pool_id=PoolId.of(row["pool_id"]),
                claimant_job_id=waiting.facts.id,
                victim_job_id=job,
                victim_tenant_id=TenantId.of(row["tenant_id"]),
                why=each.why.value,
                generation=now_us + number,  # those of one pool have one subject
            )
        )
