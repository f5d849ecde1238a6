"""One batch made durable: the plan's placements become allocations in a single guarded transaction."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from millpond_contracts.events.scheduler import AllocationBound
from millpond_contracts.ids import AllocationId, NodeId
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.plans import Placement
from millpond_scheduler.store import allocations, jobs
from millpond_scheduler.store.allocations import AllocationRecord
from millpond_scheduler.store.guards import (
    GuardFailed,
    NodeDelta,
    UsageDeltas,
    change_usage,
    demand_of,
    take_from_nodes,
)
from millpond_scheduler.store.reservations import list_open
from millpond_scheduler.usecases.shard import Shard


async def commit_placements(
    unit: UnitOfWork, lease: Lease, shard: Shard, placements: Sequence[Placement]
) -> list[AllocationRecord]:
    """Binds every placement or none.

    The order of locks is that of every other writer: the leader's epoch, jobs, nodes, usage.

    Raises:
        LeaseLost: another leader took over.
        GuardFailed: a task no longer waits, or a node, a counter or a reservation is not as planned.
        asyncpg.CheckViolationError: a node has not so much room, or a hard limit would be passed.
    """
    _check_gangs(shard, placements)
    await check_epoch(unit, lease)
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    if await list_open(unit, now) != shard.open_windows:
        raise GuardFailed("reservations began, ended or changed since the plan")
    records = [_record(shard, placement, lease.epoch, now) for placement in placements]
    await unit.execute(
        "SELECT id FROM job WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE",
        sorted({record.job for record in records}),
    )
    bound = await jobs.bind_tasks(
        unit,
        [record.task for record in records],
        [record.attempt for record in records],
        [record.id for record in records],
        now,
    )
    if bound != len(records):
        raise GuardFailed(f"{len(records) - bound} of {len(records)} tasks no longer wait")
    await allocations.insert_allocations(
        unit,
        records,
        [json.dumps(record.labels) for record in records],
        [f"[{','.join(share.model_dump_json() for share in record.devices)}]" for record in records],
        lease.epoch,
        now,
    )
    await take_from_nodes(unit, _sum_nodes(shard, placements, records))
    await change_usage(unit, sum_usage(records), 1)
    for record in records:
        unit.emit(AllocationBound(allocation=record.view()), now)
    return records


def _check_gangs(shard: Shard, placements: Sequence[Placement]) -> None:
    """Refuses a part of a gang. That each of its tasks still waits is then checked with all others."""
    gangs = Counter(shard.waiting[placement.holding.task].queued.gang for placement in placements)
    parts = [gang for gang, placed in gangs.items() if gang is not None and placed != gang.size]
    if parts:
        raise GuardFailed(f"{len(parts)} gangs of the plan are not whole")


def _record(shard: Shard, placement: Placement, epoch: int, now: datetime) -> AllocationRecord:
    holding = placement.holding
    task = shard.waiting[holding.task]
    return AllocationRecord(
        id=AllocationId.new(),
        tenant=holding.tenant,
        project=task.facts.project,
        virtual_pool=placement.virtual_pool,
        pool=task.facts.pool,
        node=holding.node,
        job=task.facts.id,
        job_name=task.facts.name,
        labels=task.facts.labels,
        task=holding.task,
        group=task.group,
        index=task.index,
        attempt=task.attempt,
        cpu_milli=holding.cpu_milli,
        memory_mib=holding.memory_mib,
        flavor=placement.flavor,
        devices=shard.shares_of(placement),
        price_version=shard.price_for(holding.tenant, now),
        stop_grace_seconds=task.facts.groups[task.group].stop_grace_seconds,
        time_limit_seconds=task.facts.time_limit_seconds,
        priority=task.queued.priority,
        gang=task.queued.gang is not None,
        epoch=epoch,
        bound_at=now,
    )


def _sum_nodes(
    shard: Shard, placements: Sequence[Placement], records: Sequence[AllocationRecord]
) -> dict[NodeId, NodeDelta]:
    deltas: dict[NodeId, NodeDelta] = {}
    for placement, record in zip(placements, records, strict=True):
        delta = deltas.get(record.node)
        if delta is None:
            layout = shard.layouts.get(record.node, 0)
            delta = deltas[record.node] = NodeDelta(record.node, placement.incarnation, layout)
        delta.add(record.cpu_milli, record.memory_mib, record.devices)
    return deltas


def sum_usage(records: Sequence[AllocationRecord]) -> UsageDeltas:
    """What the allocations count together against each limit."""
    deltas: UsageDeltas = {}
    for record in records:
        for resource, amount in demand_of(record.cpu_milli, record.memory_mib, record.flavor, record.devices).items():
            key = (record.virtual_pool, resource)
            deltas[key] = deltas.get(key, 0) + amount
    return deltas
