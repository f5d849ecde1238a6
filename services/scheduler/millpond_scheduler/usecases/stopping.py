"""Stops that nobody asked for by name: time limits and the deadline of a drain; and telling that a node is empty."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.events.scheduler import NodeEmptied
from millpond_contracts.ids import NodeId
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store.guards import lock_nodes
from millpond_scheduler.usecases.lives import lock_lives, write_lives

# The agent stops a task at its limit by itself; this is for one that does not.
LATE = timedelta(seconds=5)
BATCH = 500


async def find_over_limit(unit: UnitOfWork, now: datetime) -> list[UUID]:
    """Allocations that run longer than their job allows."""
    rows = await unit.fetch(
        "SELECT id FROM allocation WHERE state = 'active' AND time_limit_seconds IS NOT NULL"
        " AND active_at + make_interval(secs => time_limit_seconds) < $1 ORDER BY id LIMIT $2",
        now - LATE,
        BATCH,
    )
    return [row["id"] for row in rows]


async def find_overdue(unit: UnitOfWork, now: datetime) -> list[UUID]:
    """What is left on nodes whose drain is past its deadline, and was not ordered to stop yet."""
    rows = await unit.fetch(
        "SELECT a.id FROM allocation a WHERE a.node_id = ANY(ARRAY("
        "  SELECT node_id FROM node_view WHERE drain_generation IS NOT NULL AND drain_deadline < $1))"
        " AND a.state <> 'released' AND a.stop_requested_at IS NULL ORDER BY a.id LIMIT $2",
        now,
        BATCH,
    )
    return [row["id"] for row in rows]


async def find_emptied(unit: UnitOfWork) -> list[NodeId]:
    """Nodes being drained on which nothing is left, and of which that was not told yet."""
    rows = await unit.fetch(
        "SELECT v.node_id FROM node_view v JOIN node_guard g USING (node_id) WHERE v.drain_generation IS NOT NULL"
        " AND NOT v.removed AND NOT g.open AND g.emptied_generation IS DISTINCT FROM v.drain_generation"
        " AND NOT EXISTS (SELECT 1 FROM allocation a WHERE a.node_id = v.node_id AND a.state <> 'released')"
        " ORDER BY v.node_id LIMIT $1",
        BATCH,
    )
    return [NodeId.of(row["node_id"]) for row in rows]


async def stop(unit: UnitOfWork, ids: Sequence[UUID], reason: EndReason, now: datetime) -> set[NodeId]:
    """Orders allocations to stop; returns the nodes that have to be told."""
    lives = await lock_lives(unit, ids)
    for key in ids:
        lives.by_id[key].request_stop(reason, now)
    await write_lives(unit, lives, now)
    return {life.record.node for life in lives.by_id.values() if life.is_live}


async def tell_emptied(unit: UnitOfWork, nodes: Sequence[NodeId], now: datetime) -> int:
    """Tells of each drain, once, that nothing is left on its node; returns how many.

    The counters' row is locked: a node that is not open takes no allocation any more, so what is empty stays empty.
    """
    await lock_nodes(unit, nodes)
    emptied = await unit.fetch(
        "UPDATE node_guard g SET emptied_generation = v.drain_generation FROM node_view v"
        " WHERE g.node_id = ANY($1) AND v.node_id = g.node_id AND NOT g.open AND v.drain_generation IS NOT NULL"
        " AND g.emptied_generation IS DISTINCT FROM v.drain_generation"
        " AND NOT EXISTS (SELECT 1 FROM allocation a WHERE a.node_id = g.node_id AND a.state <> 'released')"
        " RETURNING g.node_id, g.emptied_generation",
        nodes,
    )
    for row in emptied:
        generation = int(row["emptied_generation"])
        unit.emit(
            NodeEmptied(node_id=NodeId.of(row["node_id"]), drain_generation=generation, generation=generation), now
        )
    return len(emptied)
