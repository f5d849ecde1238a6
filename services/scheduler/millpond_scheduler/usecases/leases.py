"""Nodes that fell silent: no new work at first, and once lease and stop grace are over, their work is given up.

Unless too many fell silent together: then it is rather the way to them that is broken, or we are, and moving all their
work would do what the silence did not. The pool is frozen, and people are told.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.events.scheduler import EvacuationFrozen, EvacuationResumed
from millpond_contracts.ids import PoolId
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.freezing import FreezeRules
from millpond_scheduler.store import node_leases
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.usecases.lives import lock_lives, write_lives
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.work import DEFAULT_LEASE_SECONDS

DEFAULT_UNREACHABLE_SECONDS = 30
DEFAULT_GRACE_SECONDS = 30
# What an agent that polls has not named for so long is gone: its record of it was lost.
FORGOTTEN_AFTER = timedelta(seconds=300)


async def extend_all(unit: UnitOfWork, now: datetime) -> int:
    """Gives every node its whole lease from now on; after a pause of ours nobody may be judged by his silence."""
    return await node_leases.extend_leases(unit, now, DEFAULT_LEASE_SECONDS)


async def mark_silent(unit: UnitOfWork, now: datetime) -> int:
    """Takes nodes that do not poll out of the leader's choice; returns how many are new."""
    nodes = await node_leases.mark_silent(unit, now, DEFAULT_UNREACHABLE_SECONDS)
    await note_changes(unit, ChangeKind.NODE, nodes)
    return len(nodes)


async def settle_freezes(unit: UnitOfWork, now: datetime, rules: FreezeRules) -> list[PoolId]:
    """Begins and ends the freezes of pools by how many of their nodes are silent; returns the pools that are frozen."""
    freezes = await node_leases.list_freezes(unit)
    counts = {
        row["pool_id"]: (row["silent"], row["nodes"])
        for row in await node_leases.count_silent(unit, now, rules.seconds)
    }
    for pool in freezes.keys() | counts.keys():
        silent, nodes = counts.get(pool, (0, 0))
        freezes_now = rules.freezes(silent, nodes)
        if freezes_now is (pool in freezes):
            continue
        if freezes_now:
            await node_leases.begin_freeze(unit, pool, silent, nodes, now)
            log.error("evacuation_frozen", pool=str(pool), silent=silent, nodes=nodes)
            ALARMS.labels("scheduler", "evacuation_frozen").inc()
        else:
            await node_leases.end_freeze(unit, pool)
        event = EvacuationFrozen if freezes_now else EvacuationResumed
        unit.emit(
            event(pool_id=PoolId.of(pool), silent_nodes=silent, nodes=nodes, generation=microseconds_of(now)), now
        )
    return sorted(PoolId.of(pool) for pool, (silent, nodes) in counts.items() if rules.freezes(silent, nodes))


async def find_expired(
    unit: UnitOfWork, now: datetime, frozen: Sequence[PoolId] = (), rules: FreezeRules | None = None
) -> dict[UUID, datetime]:
    """Allocations of nodes whose lease and stop grace are over, each with the node's last sign.

    Those of frozen pools are left out, but for what was to stop anyhow and nodes that are silent longer than `rules`
    wait.
    """
    seconds = (rules or FreezeRules()).seconds
    rows = await node_leases.list_expired(unit, now, DEFAULT_GRACE_SECONDS, frozen, seconds)
    return {row["id"]: row["renewed_at"] for row in rows}


async def find_forgotten(unit: UnitOfWork, now: datetime) -> dict[UUID, datetime]:
    """Allocations that an agent reported once but has not named in its polls for long, each with when that began."""
    rows = await unit.fetch(
        "SELECT id, missing_since FROM allocation WHERE state <> 'released' AND missing_since < $1 LIMIT 500",
        now - FORGOTTEN_AFTER,
    )
    return {row["id"]: row["missing_since"] for row in rows}


async def give_up(unit: UnitOfWork, ends: Mapping[UUID, datetime], now: datetime) -> int:
    """Releases allocations whose node is lost, as of the given instants; returns how many are still to be given up."""
    lives = await lock_lives(unit, list(ends))
    # Locked now: a node that polled while we waited keeps its work.
    still = await _still_given_up(unit, ends, now)
    for key in still:
        lives.by_id[key].release(EndReason.NODE_LOST, ends[key], message="the node or its record of the task was lost")
    await write_lives(unit, lives, now)
    return len(still)


async def _still_given_up(unit: UnitOfWork, ends: Iterable[UUID], now: datetime) -> list[UUID]:
    rows = await unit.fetch(
        "SELECT a.id FROM allocation a JOIN node_lease l USING (node_id) WHERE a.id = ANY($1)"
        " AND a.state <> 'released' AND (l.leased_until < $2 OR a.missing_since < $3)",
        list(ends),
        now,
        now - FORGOTTEN_AFTER,
    )
    return [row["id"] for row in rows]
