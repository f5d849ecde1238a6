"""What the leader of a shard keeps in memory: the snapshot, the queue, the limits and the prices, as the rows tell.

Built once under a new epoch from views and live allocations, which re-adopts everything that runs; then kept up to date
by the changes that other transactions noted, and by the leader's own commits.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.jobs import AllocationState, DeviceShare
from millpond_contracts.bodies.nodes import DeviceView, NodeView, PoolView
from millpond_contracts.bodies.tenants import Limits
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
from millpond_scheduler.domain.admission import Resource, VirtualPoolState, with_reserved
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.plans import Claim, Placement
from millpond_scheduler.domain.reclaim import Running
from millpond_scheduler.domain.requests import Gang, QueuedTask, RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.store import allocations, jobs, views
from millpond_scheduler.store.allocations import AllocationRecord
from millpond_scheduler.store.changes import ChangeKind, Changes, take_changes
from millpond_scheduler.store.guards import demand_of
from millpond_scheduler.store.reservations import ReservationRecord, list_reservations
from millpond_scheduler.usecases.records import (
    holding_of,
    microseconds_of,
    node_record,
    pool_rules,
    request_class,
    running_of,
)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the tasks of a group have in common; `gang_size` 0 = each starts by itself."""

    request: RequestClass
    stop_grace_seconds: int
    gang_size: int = 0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What an allocation takes from its job; by group: what a task asks for, and how it starts and stops."""

    id: JobId
    pool: PoolId
    project: ProjectId | None
    name: str
    labels: dict[str, str]
    time_limit_seconds: int | None
    groups: Mapping[str, GroupFacts]


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
class ClaimMemory:
    """What was promised to a claimant, and the allocations that stop for it."""

    victims: set[AllocationId]
    nodes: set[NodeId]
    placements: tuple[Placement, ...] = ()


@dataclass(slots=True)
class Shard:
    """The leader's memory. Only the leader touches it, one step at a time."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    distance: DistanceRules = field(default_factory=DistanceRules)
    cache: CandidateCache = field(init=False)
    pools: dict[PoolId, PoolView] = field(default_factory=dict)
    virtual_pools: dict[VirtualPoolId, VirtualPoolState] = field(default_factory=dict)
    limits: dict[VirtualPoolId, Limits] = field(default_factory=dict)
    reservations: list[ReservationRecord] = field(default_factory=list)
    open_windows: frozenset[tuple[UUID, int]] = frozenset()
    waiting: dict[TaskId, WaitingTask] = field(default_factory=dict)
    live: dict[AllocationId, AllocationRecord] = field(default_factory=dict)
    holders: dict[TaskId, AllocationId] = field(default_factory=dict)
    layouts: dict[NodeId, int] = field(default_factory=dict)
    devices: dict[DeviceId, DeviceView] = field(default_factory=dict)
    prices: list[Price] = field(default_factory=list)
    used: dict[VirtualPoolId, dict[Resource, int]] = field(default_factory=dict)
    claims: dict[TaskId, ClaimMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = CandidateCache(self.snapshot, distance=self.distance)

    def queue(self) -> Iterable[QueuedTask]:
        """The waiting tasks in any order."""
        return (task.queued for task in self.waiting.values())

    def open_reservations(self, now: datetime) -> None:
        """Gives virtual pools what is reserved for them at this instant beside their guarantees."""
        found = [reservation for reservation in self.reservations if reservation.is_open(now)]
        windows = frozenset((reservation.id, reservation.generation) for reservation in found)
        if windows == self.open_windows:
            return
        reserved: dict[VirtualPoolId, dict[str, int]] = {}
        for each in found:
            flavors = reserved.setdefault(each.virtual_pool, {})
            flavors[each.flavor] = flavors.get(each.flavor, 0) + each.device_milli
        for key, limits in self.limits.items():
            state = self.virtual_pools[key]
            self.virtual_pools[key] = replace(state, limits=with_reserved(limits, reserved.get(key, {})))
        self.open_windows = windows

    def list_running(self) -> Iterable[Running]:
        """Everything that is held, as reclaim sees it."""
        return [running_of(record) for record in self.live.values()]

    def open_claims(self) -> dict[TaskId, Claim]:
        """What is promised to tasks that still wait; others' promises are forgotten."""
        self.claims = {task: claim for task, claim in self.claims.items() if task in self.waiting}
        return {
            task: Claim(frozenset(claim.nodes), claim.placements, not claim.victims.isdisjoint(self.live))
            for task, claim in self.claims.items()
        }

    def hold(self, record: AllocationRecord) -> None:
        """Counts an allocation that is durable; twice is once."""
        if record.id in self.live:
            return
        self.live[record.id] = record
        self.holders[record.task] = record.id
        self.waiting.pop(record.task, None)
        self.snapshot.apply_allocation(holding_of(record))
        self._count(record, 1)
        if record.claimed_by is not None:
            claim = self.claims.setdefault(record.claimed_by, ClaimMemory(set(), set()))
            claim.victims.add(record.id)
            claim.nodes.add(record.node)

    def release(self, allocation: AllocationId) -> None:
        """Gives back what an allocation held; twice is once."""
        record = self.live.pop(allocation, None)
        if record is None:
            return
        if self.holders.get(record.task) == allocation:
            del self.holders[record.task]
            self.snapshot.release_allocation(record.task)
        self._count(record, -1)

    def note_state(self, allocation: AllocationId, state: AllocationState) -> None:
        """Takes an allocation's newer state: one that is being stopped is no victim, one that is gone holds nothing."""
        if state is AllocationState.RELEASED:
            self.release(allocation)
        elif (record := self.live.get(allocation)) is not None:
            record.state = state

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


async def load_shard(unit: UnitOfWork, lease: Lease, distance: DistanceRules | None = None) -> Shard:
    """Everything, read under the leader's epoch.

    Raises:
        LeaseLost: another leader took over.
    """
    await check_epoch(unit, lease)
    # Before the rows: what is noted from now on is applied again, which changes nothing.
    await take_changes(unit)
    shard = Shard(distance=distance or DistanceRules())
    await load_rules(unit, shard)
    apply_nodes(shard, await views.list_nodes(unit, None))
    for record in await allocations.list_live(unit):
        shard.hold(record)
    await load_waiting(unit, shard, None)
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
    if changed := changes.get(ChangeKind.ALLOCATION):
        for allocation, state in (await allocations.read_states(unit, changed)).items():
            shard.note_state(AllocationId.of(allocation), state)
    if nodes := changes.get(ChangeKind.NODE):
        apply_nodes(shard, await views.list_nodes(unit, list(nodes)))
        await _reread_live(unit, shard, nodes)
    if tasks := changes.get(ChangeKind.TASK):
        for task in tasks:
            shard.waiting.pop(TaskId.of(task), None)
        await load_waiting(unit, shard, list(tasks))


async def load_rules(unit: UnitOfWork, shard: Shard) -> None:
    """Reads what is small: pools, virtual pools with their limits, prices."""
    await _load_pools(unit, shard)
    await _load_virtual_pools(unit, shard)
    await _load_prices(unit, shard)


async def _load_pools(unit: UnitOfWork, shard: Shard) -> None:
    shard.pools = {pool.pool_id: pool for pool in await views.list_pools(unit)}
    for pool in shard.pools.values():
        rules = pool_rules(pool)
        if shard.snapshot.rules_of(pool.pool_id) != rules:
            shard.snapshot.set_rules(pool.pool_id, rules)


async def _load_virtual_pools(unit: UnitOfWork, shard: Shard) -> None:
    shard.virtual_pools, shard.open_windows = {}, frozenset()
    shard.reservations = await list_reservations(unit)
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
    shard.limits = {key: state.limits for key, state in shard.virtual_pools.items()}


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


def apply_nodes(shard: Shard, rows: Sequence[asyncpg.Record]) -> None:
    """Takes nodes as the views tell them; those that were removed leave."""
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


async def load_waiting(unit: UnitOfWork, shard: Shard, tasks: Sequence[UUID] | None) -> None:
    """Reads waiting tasks, some or (None) all, with what their jobs say."""
    rows = await jobs.list_waiting(unit, tasks)
    wanted = sorted({row["job_id"] for row in rows})
    tenants = {row["job_id"]: TenantId.of(row["tenant_id"]) for row in rows}
    facts = {row["id"]: _job_facts(row, tenants[row["id"]]) for row in await jobs.list_specs(unit, wanted)}
    for row in rows:
        job = facts[row["job_id"]]
        task, group = TaskId.of(row["id"]), job.groups[row["group_name"]]
        shard.waiting[task] = WaitingTask(
            queued=QueuedTask(
                id=task,
                job=job.id,
                virtual_pool=VirtualPoolId.of(row["virtual_pool_id"]),
                request=group.request,
                priority=row["priority"],
                queued_at_us=microseconds_of(row["queued_at"]),
                gang=Gang(job.id, row["group_name"], group.gang_size) if group.gang_size else None,
            ),
            facts=job,
            group=row["group_name"],
            index=row["index"],
            attempt=row["attempt"],
        )


def _job_facts(row: asyncpg.Record, tenant: TenantId) -> JobFacts:
    pool = PoolId.of(row["pool_id"])
    return JobFacts(
        id=JobId.of(row["id"]),
        pool=pool,
        project=None if row["project_id"] is None else ProjectId.of(row["project_id"]),
        name=row["name"],
        labels=row["labels"],
        time_limit_seconds=row["time_limit_seconds"],
        groups=_read_groups(tenant, pool, row["groups"]),
    )


@lru_cache(maxsize=4096)
def _read_groups(tenant: TenantId, pool: PoolId, text: str) -> Mapping[str, GroupFacts]:
    """A job's groups by name. Jobs are often alike: what was read once is shared, and compared faster."""
    groups: list[dict[str, Any]] = json.loads(text)
    return {
        group["name"]: GroupFacts(
            request_class(tenant, pool, group),
            group["stop_grace_seconds"],
            group["count"] if group.get("gang") else 0,
        )
        for group in groups
    }
