"""What the leader of a shard keeps in memory: the snapshot, the queue, the limits and the prices, as the rows tell.

Built once under a new epoch from views and live allocations, which re-adopts everything that runs; then kept up to date
by the changes that other transactions noted, and by the leader's own commits.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.jobs import DeviceShare
from millpond_contracts.bodies.nodes import DeviceView, NodeView, PoolView
from millpond_contracts.ids import (
    AllocationId,
    DeviceId,
    JobId,
    NodeId,
    PoolId,
    PriceVersionId,
    ProjectId,
    TaskId,
    TenantId,
    VirtualPoolId,
)
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.admission import Resource, VirtualPoolState
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.plans import Placement
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.store import allocations, jobs, views
from millpond_scheduler.store.allocations import AllocationRecord
from millpond_scheduler.store.changes import ChangeKind, Changes, take_changes
from millpond_scheduler.store.guards import demand_of
from millpond_scheduler.usecases.records import holding_of, microseconds_of, node_record, pool_rules, request_class


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What an allocation takes from its job; `requests` and the seconds that a stop may take are by group."""

    id: JobId
    pool: PoolId
    project: ProjectId | None
    name: str
    labels: dict[str, str]
    time_limit_seconds: int | None
    requests: Mapping[str, RequestClass]
    stop_grace_seconds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """One waiting attempt beside what its allocation needs."""

    queued: QueuedTask
    facts: JobFacts
    group: str
    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Price:
    """A price version; `tenant` None = the public list."""

    id: PriceVersionId
    tenant: TenantId | None
    valid_from: datetime
    valid_to: datetime | None


@dataclass(slots=True)
class Shard:
    """The leader's memory. Only the leader touches it, one step at a time."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    cache: CandidateCache = field(init=False)
    pools: dict[PoolId, PoolView] = field(default_factory=dict)
    virtual_pools: dict[VirtualPoolId, VirtualPoolState] = field(default_factory=dict)
    waiting: dict[TaskId, WaitingTask] = field(default_factory=dict)
    live: dict[AllocationId, AllocationRecord] = field(default_factory=dict)
    holders: dict[TaskId, AllocationId] = field(default_factory=dict)
    layouts: dict[NodeId, int] = field(default_factory=dict)
    devices: dict[DeviceId, DeviceView] = field(default_factory=dict)
    prices: list[Price] = field(default_factory=list)
    used: dict[VirtualPoolId, dict[Resource, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = CandidateCache(self.snapshot)

    def queue(self) -> Iterable[QueuedTask]:
        """The waiting tasks in any order."""
        return (task.queued for task in self.waiting.values())

    def hold(self, record: AllocationRecord) -> None:
        """Counts an allocation that is durable; twice is once."""
        if record.id in self.live:
            return
        self.live[record.id] = record
        self.holders[record.task] = record.id
        self.waiting.pop(record.task, None)
        self.snapshot.apply_allocation(holding_of(record))
        self._count(record, 1)

    def release(self, allocation: AllocationId) -> None:
        """Gives back what an allocation held; twice is once."""
        record = self.live.pop(allocation, None)
        if record is None:
            return
        if self.holders.get(record.task) == allocation:
            del self.holders[record.task]
            self.snapshot.release_allocation(record.task)
        self._count(record, -1)

    def price_for(self, tenant: TenantId, now: datetime) -> PriceVersionId | None:
        """The price version in force for a tenant: its own if it has one, else the public list's."""
        in_force = [
            price
            for price in self.prices
            if price.valid_from <= now and (price.valid_to is None or now < price.valid_to)
        ]
        for owner in (tenant, None):
            for price in in_force:
                if price.tenant == owner:
                    return price.id
        return None

    def shares_of(self, placement: Placement) -> tuple[DeviceShare, ...]:
        """A placement's devices as the agent and everybody else is told of them."""
        shares = []
        for pick in placement.holding.devices:
            device = self.devices[pick.device]
            shares.append(
                DeviceShare.model_construct(
                    device_id=pick.device,
                    identity=device.identity,
                    vendor=device.vendor,
                    index=device.index,
                    uuid=device.uuid,
                    flavor=device.flavor,
                    milli=pick.milli,
                    memory_mib=pick.memory_mib or None,
                )
            )
        return tuple(shares)

    def _count(self, record: AllocationRecord, sign: int) -> None:
        used = self.used.setdefault(record.virtual_pool, {})
        for resource, amount in demand_of(record.cpu_milli, record.memory_mib, record.flavor, record.devices).items():
            used[resource] = used.get(resource, 0) + sign * amount


async def load_shard(unit: UnitOfWork, lease: Lease) -> Shard:
    """Everything, read under the leader's epoch.

    Raises:
        LeaseLost: another leader took over.
    """
    await check_epoch(unit, lease)
    # Before the rows: what is noted from now on is applied again, which changes nothing.
    await take_changes(unit)
    shard = Shard()
    await _load_pools(unit, shard)
    await _load_virtual_pools(unit, shard)
    await _load_prices(unit, shard)
    _apply_nodes(shard, await views.list_nodes(unit, None))
    for record in await allocations.list_live(unit):
        shard.hold(record)
    await _load_waiting(unit, shard, None)
    return shard


async def refresh_shard(unit: UnitOfWork, lease: Lease, shard: Shard) -> Changes:
    """Applies what others changed since the last call; returns what that was.

    Raises:
        LeaseLost: another leader took over.
    """
    await check_epoch(unit, lease)
    changes = await take_changes(unit)
    await apply_changes(unit, shard, changes)
    return changes


async def apply_changes(unit: UnitOfWork, shard: Shard, changes: Changes) -> None:
    """Reads the changed objects again. Releases come before tasks, because a retry waits only after its release."""
    if ChangeKind.POOL in changes:
        await _load_pools(unit, shard)
    if ChangeKind.VIRTUAL_POOL in changes:
        await _load_virtual_pools(unit, shard)
    if ChangeKind.PRICE in changes:
        await _load_prices(unit, shard)
    if released := changes.get(ChangeKind.ALLOCATION):
        for allocation in await allocations.find_released(unit, released):
            shard.release(AllocationId.of(allocation))
    if nodes := changes.get(ChangeKind.NODE):
        _apply_nodes(shard, await views.list_nodes(unit, list(nodes)))
        await _reread_live(unit, shard, nodes)
    if tasks := changes.get(ChangeKind.TASK):
        for task in tasks:
            shard.waiting.pop(TaskId.of(task), None)
        await _load_waiting(unit, shard, list(tasks))


async def _load_pools(unit: UnitOfWork, shard: Shard) -> None:
    shard.pools = {pool.pool_id: pool for pool in await views.list_pools(unit)}
    for pool in shard.pools.values():
        rules = pool_rules(pool)
        if shard.snapshot.rules_of(pool.pool_id) != rules:
            shard.snapshot.set_rules(pool.pool_id, rules)


async def _load_virtual_pools(unit: UnitOfWork, shard: Shard) -> None:
    shard.virtual_pools = {}
    for row in await views.list_virtual_pools(unit):
        key = VirtualPoolId.of(row["id"])
        shard.virtual_pools[key] = VirtualPoolState(
            id=key,
            tenant=views.tenant_of(row),
            pool=PoolId.of(row["pool_id"]),
            limits=views.limits_of(row),
            used=shard.used.setdefault(key, {}),
            policy=views.policy_of(row),
        )


async def _load_prices(unit: UnitOfWork, shard: Shard) -> None:
    now = await unit.fetchval("SELECT clock_timestamp()")
    shard.prices = [
        Price(
            PriceVersionId.of(row["id"]),
            None if row["tenant_id"] is None else TenantId.of(row["tenant_id"]),
            row["valid_from"],
            row["valid_to"],
        )
        for row in await views.list_prices(unit, now)
    ]


def _apply_nodes(shard: Shard, rows: Sequence[asyncpg.Record]) -> None:
    for row in rows:
        node = NodeView.model_validate(row["body"])
        if row["removed"]:
            shard.snapshot.remove_node(node.node_id)
            shard.layouts.pop(node.node_id, None)
            continue
        shard.layouts[node.node_id] = row["layout"]
        shard.devices.update({device.device_id: device for device in node.devices})
        shard.snapshot.upsert_node(node_record(node, silent=row["silent"]))


async def _reread_live(unit: UnitOfWork, shard: Shard, nodes: Iterable[UUID]) -> None:
    wanted = set(nodes)
    found = {record.id: record for record in await allocations.list_live(unit, list(wanted))}
    for allocation, record in list(shard.live.items()) if len(wanted) > 64 else _on_nodes(shard, wanted):
        if record.node in wanted and allocation not in found:
            shard.release(allocation)
    for record in found.values():
        shard.hold(record)


def _on_nodes(shard: Shard, nodes: Iterable[UUID]) -> list[tuple[AllocationId, AllocationRecord]]:
    held = [holding.task for node in nodes for holding in shard.snapshot.list_holdings(NodeId.of(node))]
    return [(shard.holders[task], shard.live[shard.holders[task]]) for task in held if task in shard.holders]


async def _load_waiting(unit: UnitOfWork, shard: Shard, tasks: Sequence[UUID] | None) -> None:
    rows = await jobs.list_waiting(unit, tasks)
    wanted = sorted({row["job_id"] for row in rows})
    tenants = {row["job_id"]: TenantId.of(row["tenant_id"]) for row in rows}
    facts = {row["id"]: _job_facts(row, tenants[row["id"]]) for row in await jobs.list_specs(unit, wanted)}
    for row in rows:
        job = facts[row["job_id"]]
        task = TaskId.of(row["id"])
        shard.waiting[task] = WaitingTask(
            queued=QueuedTask(
                id=task,
                job=job.id,
                virtual_pool=VirtualPoolId.of(row["virtual_pool_id"]),
                request=job.requests[row["group_name"]],
                priority=row["priority"],
                queued_at_us=microseconds_of(row["queued_at"]),
            ),
            facts=job,
            group=row["group_name"],
            index=row["index"],
            attempt=row["attempt"],
        )


def _job_facts(row: asyncpg.Record, tenant: TenantId) -> JobFacts:
    pool = PoolId.of(row["pool_id"])
    requests, stop_grace_seconds = _read_groups(tenant, pool, row["groups"])
    return JobFacts(
        id=JobId.of(row["id"]),
        pool=pool,
        project=None if row["project_id"] is None else ProjectId.of(row["project_id"]),
        name=row["name"],
        labels=row["labels"],
        time_limit_seconds=row["time_limit_seconds"],
        requests=requests,
        stop_grace_seconds=stop_grace_seconds,
    )


@lru_cache(maxsize=4096)
def _read_groups(tenant: TenantId, pool: PoolId, text: str) -> tuple[Mapping[str, RequestClass], Mapping[str, int]]:
    """Requests and stop graces by group. Jobs are often alike: what was read once is shared, and compared faster."""
    groups: list[dict[str, Any]] = json.loads(text)
    return (
        {group["name"]: request_class(tenant, pool, group) for group in groups},
        {group["name"]: group["stop_grace_seconds"] for group in groups},
    )
