"""Fills a shard's memory from rows: everything under a new epoch, then whatever others noted as changed."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.tenants import Preemption
from millpond_contracts.ids import (
    AllocationId,
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
from millpond_scheduler.domain.admission import VirtualPoolState
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.preemption import Eviction
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.running import Running
from millpond_scheduler.store import allocations, evictions, jobs, moves, views
from millpond_scheduler.store.changes import ChangeKind, Changes, take_changes
from millpond_scheduler.store.reservations import list_reservations
from millpond_scheduler.usecases.adopting import NodeReader, RunningReader
from millpond_scheduler.usecases.mixes import refresh_mixes
from millpond_scheduler.usecases.records import (
    bind_whole_job,
    longest_us,
    microseconds_of,
    placement_rules,
    pool_rules,
    read_labels,
    request_class,
)
from millpond_scheduler.usecases.shard import ClaimMemory, GroupFacts, JobFacts, Price, Shard, WaitingTask


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
    nodes = await views.list_nodes(unit, None)
    # Nothing refers to the shard yet, so a thread may fill it while the database looks for what runs.
    _, live = await asyncio.gather(asyncio.to_thread(apply_nodes, shard, nodes), allocations.list_live(unit))
    hold_rows(shard, live)
    shard.targets = await moves.list_targets(unit)
    await load_waiting(unit, shard, None)
    await restore_claims(unit, shard)
    await load_evictions(unit, shard)
    await refresh_mixes(unit, shard)
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
    shard.growth = await views.list_growth(unit)
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
            used_by=shard.used_by.setdefault(key, {}),
            policy=views.policy_of(row),
            preemption=Preemption(row["preemption"]),
            minimum_runtime_seconds=row["minimum_runtime_seconds"],
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
    reader = NodeReader()
    for row in rows:
        if row["removed"]:
            node = NodeId.of(row["node_id"])
            shard.snapshot.remove_node(node)
            shard.layouts.pop(node, None)
            continue
        record, devices = reader.read(row)
        shard.layouts[record.id] = row["layout"]
        shard.devices |= devices
        shard.snapshot.upsert_node(record)


async def _reread_live(unit: UnitOfWork, shard: Shard, nodes: Iterable[UUID]) -> None:
    wanted = set(nodes)
    rows = await allocations.list_live(unit, list(wanted))
    found = {row["id"] for row in rows}
    for allocation, running in list(shard.live.items()) if len(wanted) > 64 else _on_nodes(shard, wanted):
        if running.holding.node in wanted and allocation not in found:
            shard.release(allocation)
    hold_rows(shard, rows)


def _on_nodes(shard: Shard, nodes: Iterable[UUID]) -> list[tuple[AllocationId, Running]]:
    held = [holding.task for node in nodes for holding in shard.snapshot.list_holdings(NodeId.of(node))]
    return [(shard.holders[task], shard.live[shard.holders[task]]) for task in held if task in shard.holders]


def hold_rows(shard: Shard, rows: Iterable[asyncpg.Record]) -> None:
    """Takes live allocations as their rows tell them."""
    reader = RunningReader()
    running, claimed = {}, {}
    for row in rows:
        key = AllocationId.of(row["id"])
        if shard.live and key in shard.live:
            continue
        running[key] = reader.read(row)
        if row["claimed_by"] is not None:
            claimed[key] = TaskId.of(row["claimed_by"])
    shard.hold_many(running)
    for key, claimant in claimed.items():
        shard.note_stopping(key, claimant)


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
                failed_on=None if row["failed_on"] is None else NodeId.of(row["failed_on"]),
                project=job.project,
                work=row["work"],
                lasts_us=longest_us(job.time_limit_seconds, group.stop_grace_seconds),
                gang=job.gang_of(row["group_name"]),
                group=row["group_name"],
                moves_to=shard.targets.get(task),
                labels=read_labels(job.labels),
                rules=group.rules,
            ),
            facts=job,
            group=row["group_name"],
            index=row["index"],
            attempt=row["attempt"],
        )


async def read_groups(unit: UnitOfWork, wanted: Sequence[UUID]) -> dict[tuple[UUID, str], GroupFacts]:
    """What the tasks of each group of these jobs ask for, by job and group."""
    rows = await unit.fetch("SELECT id, tenant_id FROM job WHERE id = ANY($1)", wanted)
    tenants = {row["id"]: TenantId.of(row["tenant_id"]) for row in rows}
    return {
        (row["id"], name): group
        for row in await jobs.list_specs(unit, wanted)
        for name, group in _job_facts(row, tenants[row["id"]]).groups.items()
    }


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


async def restore_claims(unit: UnitOfWork, shard: Shard, *, only_open: bool = False) -> None:
    """Keeps for claimants what was freed for them, also where nothing that is held any more tells of it.

    Args:
        only_open: not for those for whom nothing stops any more: their turn was, or is now.
    """
    for row in await evictions.list_emptied(unit):
        claimant = TaskId.of(row["claimant_id"])
        if only_open and claimant not in shard.claims:
            continue
        claim = shard.claims.setdefault(claimant, ClaimMemory(set(), set()))
        claim.nodes |= {NodeId.of(node) for node in row["nodes"]}
        claim.moves = row["moves"]


async def load_evictions(unit: UnitOfWork, shard: Shard) -> None:
    """Reads what was stopped for others in the last hour."""
    shard.evictions = [
        Eviction(TaskId.of(row["task_id"]), TaskId.of(row["claimant_id"]), microseconds_of(row["at"]))
        for row in await evictions.list_evictions(unit)
    ]


@lru_cache(maxsize=4096)
def _read_groups(tenant: TenantId, pool: PoolId, text: str) -> Mapping[str, GroupFacts]:
    """A job's groups by name. Jobs are often alike: what was read once is shared, and compared faster."""
    groups = bind_whole_job(json.loads(text))
    return {
        group["name"]: GroupFacts(
            request_class(tenant, pool, group),
            group["stop_grace_seconds"],
            group["count"],
            group.get("gang", False),
            placement_rules(group),
        )
        for group in groups
    }
