"""Capacity: kept by marks and tallies as things change, counted afresh from time to time, and told when it differs."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.bodies.nodes import NodeState
from millpond_contracts.bodies.pools import PoolCapacity
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import CapacityChanged, CapacityDriftFound
from millpond_contracts.ids import NodeId, PoolId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.capacity import (
    Held,
    Tally,
    describe_drift,
    sum_tallies_of,
    tally_of,
    tell_devices,
    tell_hosts,
)
from millpond_registry.store import allocations, capacity, nodes, pools
from millpond_registry.store.clock import read_clock
from millpond_registry.store.devices import devices_of_nodes

# Within this time an allocation's event has arrived here, and the pages of a snapshot were read.
SETTLING_SECONDS = 30.0


def pool_capacity(row: asyncpg.Record) -> PoolCapacity:
    """The capacity of a row of figures."""
    tally = Tally.from_json(row["tally"])
    return PoolCapacity(
        pool_id=PoolId.of(row["pool_id"]),
        as_of=row["as_of"],
        nodes=dict(tally.nodes),
        hosts=tell_hosts(tally),
        devices=tell_devices(tally),
        recounted_at=row["recounted_at"],
        generation=row["generation"],
    )


async def get_capacity(unit: UnitOfWork, pool_id: PoolId) -> PoolCapacity:
    """The pool's figures, when the scope may see the pool.

    Raises:
        ProblemError: 404 otherwise.
    """
    row = await capacity.find_figures(unit, pool_id)
    if row is None:
        raise ProblemError(ErrorCode.POOL_NOT_FOUND, f"There is no pool {pool_id}.")
    return pool_capacity(row)


async def take_allocations(unit: UnitOfWork, views: Sequence[AllocationView]) -> int:
    """How many allocations were news; their nodes are counted again."""
    changed = await allocations.put_allocations(unit, views)
    if changed:
        await capacity.mark_nodes(unit, changed)
    return len(changed)


async def count_marked(unit: UnitOfWork) -> int:
    """Counts the nodes that changed, moves the difference into their pools' figures; tells how many pools changed."""
    marked = await capacity.take_marks(unit)
    if not marked:
        return 0
    await capacity.lock_counting(unit)
    change: dict[UUID, Tally] = defaultdict(Tally)
    for row in await capacity.tallies_of(unit, marked):
        change[row["pool_id"]] = change[row["pool_id"]] - Tally.from_json(row["tally"])
    counted = await _count(unit, marked)
    for pool_id, tally in counted.values():
        change[pool_id] = change[pool_id] + tally
    await _store_tallies(unit, marked, counted)
    told = 0
    for row in await capacity.lock_figures(unit, list(change)):
        told += await _write(unit, row, Tally.from_json(row["tally"]) + change[row["pool_id"]])
    return told


async def recount_pool(unit: UnitOfWork, pool_id: UUID) -> bool:
    """Counts a pool afresh and compares with what events gave; a difference is repaired and raised as an alarm.

    A node that is marked has changed since it was counted, which is no drift: what the figures contain of it stands.
    """
    await capacity.lock_counting(unit)
    locked = await capacity.lock_figures(unit, [pool_id])
    if not locked:
        return False
    contained = {row["node_id"]: Tally.from_json(row["tally"]) for row in await capacity.tallies_of_pool(unit, pool_id)}
    counted = await _count(unit, await capacity.nodes_of_pool(unit, pool_id))
    marked = await capacity.read_marks(unit)
    settled = {node_id: found for node_id, found in counted.items() if node_id not in marked}
    await _store_tallies(unit, (contained.keys() | settled.keys()) - marked, settled)
    waiting = [tally for node_id, tally in contained.items() if node_id in marked]
    fresh = sum_tallies_of([*waiting, *(tally for _, tally in settled.values())])
    found = Tally.from_json(locked[0]["tally"])
    if fresh != found:
        generation = await capacity.raise_figures(unit, pool_id)
        detail = describe_drift(found, fresh)
        unit.emit(CapacityDriftFound(pool_id=PoolId.of(pool_id), detail=detail, generation=generation))
    await _write(unit, locked[0], fresh, recounted=True)
    return fresh != found


async def compare_allocations(unit: UnitOfWork, live: Sequence[dict[str, Any]]) -> int:
    """Repairs the view of allocations by the scheduler's own list of what is held, and raises an alarm per pool.

    Only rows that had time to arrive count as wrong: what was bound or released a moment ago is on its way.

    Returns:
        How many rows were wrong.
    """
    views = [AllocationView.model_validate(item) for item in live]
    known = await allocations.read_held(unit, [view.allocation_id for view in views])
    settled = await read_clock(unit) - timedelta(seconds=SETTLING_SECONDS)
    wrong: list[NodeId] = []
    for view in views:
        if known.get(view.allocation_id) == allocations.held_of(view):
            continue
        if await allocations.put_allocations(unit, [view], repair=True):
            await capacity.mark_node(unit, view.node_id)
            if view.bound_at < settled:
                wrong.append(view.node_id)
    for node_id in await allocations.release_missing(unit, [view.allocation_id for view in views], SETTLING_SECONDS):
        await capacity.mark_node(unit, node_id)
        wrong.append(node_id)
    for row in await capacity.lock_figures(unit, await nodes.pools_of(unit, wrong)):
        generation = await capacity.raise_figures(unit, row["pool_id"])
        detail = f"{len(wrong)} allocations differed from the scheduler's"
        unit.emit(CapacityDriftFound(pool_id=PoolId.of(row["pool_id"]), detail=detail, generation=generation))
    return len(wrong)


async def _write(unit: UnitOfWork, row: asyncpg.Record, tally: Tally, *, recounted: bool = False) -> bool:
    changed = tally != Tally.from_json(row["tally"])
    if changed or recounted:
        written = await capacity.update_figures(
            unit, row["pool_id"], tally.to_json(), changed=changed, recounted=recounted
        )
        if changed:
            unit.emit(CapacityChanged(capacity=pool_capacity(written)))
    return changed


async def _count(unit: UnitOfWork, node_ids: Collection[UUID]) -> dict[UUID, tuple[UUID, Tally]]:
    """node id -> (pool id, tally) of those nodes that exist and were not removed."""
    present = [node for node in await nodes.list_nodes_by_id(unit, node_ids) if node.state is not NodeState.REMOVED]
    devices = await devices_of_nodes(unit, [node.id for node in present])
    held = _held(await allocations.live_allocations(unit, [node.id for node in present]))
    references = {pool.pool_id: pool.reference_task_milli for pool in await pools.read_all_pools(unit)}
    return {
        node.id: (
            node.pool_id,
            tally_of(node, devices[node.id], held.get(node.id, Held()), references[node.pool_id]),
        )
        for node in present
    }


def _held(rows: Sequence[asyncpg.Record]) -> Mapping[UUID, Held]:
    cpu: Counter[UUID] = Counter()
    memory: Counter[UUID] = Counter()
    milli: dict[UUID, Counter[UUID]] = defaultdict(Counter)
    slots: dict[UUID, Counter[UUID]] = defaultdict(Counter)
    for row in rows:
        cpu[row["node_id"]] += row["cpu_milli"]
        memory[row["node_id"]] += row["memory_mib"]
        for device, amount, *mask in row["devices"]:
            milli[row["node_id"]][UUID(device)] += amount
            slots[row["node_id"]][UUID(device)] += sum(mask)
    return {node_id: Held(cpu[node_id], memory[node_id], milli[node_id], slots[node_id]) for node_id in cpu}


async def _store_tallies(
    unit: UnitOfWork, node_ids: Collection[UUID], counted: Mapping[UUID, tuple[UUID, Tally]]
) -> None:
    await capacity.put_tallies(
        unit, [(node_id, pool_id, tally.to_json()) for node_id, (pool_id, tally) in counted.items()]
    )
    gone = [node_id for node_id in node_ids if node_id not in counted]
    if gone:
        await capacity.delete_tallies(unit, gone)
