"""Nodes that fell silent: no new work at first, and once lease and stop grace are over, their work is given up."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from millpond_contracts.bodies.jobs import EndReason
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import node_leases
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.usecases.lives import lock_lives, write_lives
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


async def give_up_expired(unit: UnitOfWork, now: datetime) -> int:
    """Releases what nodes hold whose lease and stop grace are over, as of their last sign; returns how many."""
    rows = await node_leases.list_expired(unit, now, DEFAULT_GRACE_SECONDS)
    seen = {row["id"]: row["renewed_at"] for row in rows}
    return await _give_up(unit, seen, now, "the node's lease ran out")


async def give_up_forgotten(unit: UnitOfWork, now: datetime) -> int:
    """Releases what an agent reported once but has not named in its polls for long; returns how many."""
    rows = await unit.fetch(
        "SELECT id, missing_since FROM allocation WHERE state <> 'released' AND missing_since < $1 LIMIT 500",
        now - FORGOTTEN_AFTER,
    )
    return await _give_up(
        unit, {row["id"]: row["missing_since"] for row in rows}, now, "the agent no longer knows the task"
    )


async def _give_up(unit: UnitOfWork, ends: Mapping[UUID, datetime], now: datetime, message: str) -> int:
    if not ends:
        return 0
    lives = await lock_lives(unit, list(ends))
    # Locked now: a node that polled while we waited keeps its work.
    still = await _still_given_up(unit, ends, now)
    for key in still:
        lives.by_id[key].release(EndReason.NODE_LOST, ends[key], message=message)
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
