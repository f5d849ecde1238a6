"""Rows of allocations: one attempt of a task on one node, with everything that others are told of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.allocations import AllocationState, AllocationView, DeviceShare, EndReason
from millpond_contracts.errors import ErrorCode
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
from millpond_kernel.filters import EVER, Span, Where
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


class GangEnd(StrEnum):
    """What a gang does after a task of it was stopped or ended without success, decided once for all its tasks."""

    RESTART = "restart"
    END = "end"


@dataclass(slots=True)
class AllocationRecord:
    """One allocation, changed in memory and written by `update_allocations`. Units as in `AllocationView`.

    `last_sequence` is the highest report applied; `order_sent_at` when its present order was last given to the agent;
    `gang_end` what follows for its task once the gang is being stopped; `claimed_by` the waiting task (of a gang the
    first) that its end makes room for.
    """

    id: AllocationId
    tenant: TenantId
    project: ProjectId | None
    virtual_pool: VirtualPoolId
    pool: PoolId
    node: NodeId
    job: JobId
    job_name: str
    labels: dict[str, str]
    task: TaskId
    group: str
    index: int
    attempt: int
    cpu_milli: int
    memory_mib: int
    flavor: str | None
    devices: tuple[DeviceShare, ...]
    price_version: PriceVersionId | None
    stop_grace_seconds: int
    time_limit_seconds: int | None
    epoch: int
    bound_at: datetime
    term: str = "on_demand"
    state: AllocationState = AllocationState.BOUND
    active_at: datetime | None = None
    stop_requested_at: datetime | None = None
    stop_reason: EndReason | None = None
    waived_from: datetime | None = None
    released_at: datetime | None = None
    reason: EndReason | None = None
    exit_code: int | None = None
    last_sequence: int = 0
    order_sent_at: datetime | None = None
    generation: int = 1
    priority: int = 50
    gang: bool = False
    gang_end: GangEnd | None = None
    claimed_by: TaskId | None = None

    def view(self) -> AllocationView:
        """The allocation as others see it. Not validated: everything here is of its type, and binds are many."""
        return AllocationView.model_construct(
            allocation_id=self.id,
            job_id=self.job,
            job_name=self.job_name,
            task_id=self.task,
            group=self.group,
            index=self.index,
            attempt=self.attempt,
            tenant_id=self.tenant,
            project_id=self.project,
            virtual_pool_id=self.virtual_pool,
            pool_id=self.pool,
            node_id=self.node,
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
            devices=self.devices,
            term=self.term,
            price_version_id=self.price_version,
            labels=self.labels,
            state=self.state,
            epoch=self.epoch,
            bound_at=self.bound_at,
            active_at=self.active_at,
            stop_requested_at=self.stop_requested_at,
            waived_from=self.waived_from,
            released_at=self.released_at,
            reason=self.reason,
            exit_code=self.exit_code,
            generation=self.generation,
        )


def allocation_record(row: asyncpg.Record) -> AllocationRecord:
    """The allocation of a row."""
    return AllocationRecord(
        id=AllocationId.of(row["id"]),
        tenant=TenantId.of(row["tenant_id"]),
        project=None if row["project_id"] is None else ProjectId.of(row["project_id"]),
        virtual_pool=VirtualPoolId.of(row["virtual_pool_id"]),
        pool=PoolId.of(row["pool_id"]),
        node=NodeId.of(row["node_id"]),
        job=JobId.of(row["job_id"]),
        job_name=row["job_name"],
        labels=row["labels"],
        task=TaskId.of(row["task_id"]),
        group=row["group_name"],
        index=row["index"],
        attempt=row["attempt"],
        cpu_milli=row["cpu_milli"],
        memory_mib=row["memory_mib"],
        flavor=row["flavor"],
        devices=tuple(DeviceShare.model_validate(share) for share in row["devices"]),
        price_version=None if row["price_version_id"] is None else PriceVersionId.of(row["price_version_id"]),
        stop_grace_seconds=row["stop_grace_seconds"],
        time_limit_seconds=row["time_limit_seconds"],
        epoch=row["epoch"],
        bound_at=row["bound_at"],
        term=row["term"],
        state=AllocationState(row["state"]),
        active_at=row["active_at"],
        stop_requested_at=row["stop_requested_at"],
        stop_reason=None if row["stop_reason"] is None else EndReason(row["stop_reason"]),
        waived_from=row["waived_from"],
        released_at=row["released_at"],
        reason=None if row["reason"] is None else EndReason(row["reason"]),
        exit_code=row["exit_code"],
        last_sequence=row["last_sequence"],
        order_sent_at=row["order_sent_at"],
        generation=row["generation"],
        priority=row["priority"],
        gang=row["gang"],
        gang_end=None if row["gang_end"] is None else GangEnd(row["gang_end"]),
        claimed_by=None if row["claimed_by"] is None else TaskId.of(row["claimed_by"]),
    )


_INSERT = """
INSERT INTO allocation (id, tenant_id, project_id, virtual_pool_id, pool_id, node_id, job_id, job_name, labels, task_id,
    group_name, index, attempt, cpu_milli, memory_mib, flavor, devices, term, price_version_id, stop_grace_seconds,
    time_limit_seconds, priority, gang, state, epoch, bound_at, generation)
SELECT i, t, p, v, o, n, j, jn, l::jsonb, k, g, x, a, c, m, f, d::jsonb, 'on_demand', r, s, z, y, w, 'bound', $23, $24,
    1
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[], $9::text[],
    $10::uuid[], $11::text[], $12::int[], $13::int[], $14::bigint[], $15::bigint[], $16::text[], $17::text[],
    $18::uuid[], $19::int[], $20::int[], $21::int[], $22::bool[])
    AS u(i, t, p, v, o, n, j, jn, l, k, g, x, a, c, m, f, d, r, s, z, y, w)
"""


class NewAllocation(NamedTuple):
    """An allocation to be stored, in the order of the columns. `labels` and `devices` are JSON texts."""

    id: AllocationId
    tenant: TenantId
    project: ProjectId | None
    virtual_pool: VirtualPoolId
    pool: PoolId
    node: NodeId
    job: JobId
    job_name: str
    labels: str
    task: TaskId
    group: str
    place: int
    attempt: int
    cpu_milli: int
    memory_mib: int
    flavor: str | None
    devices: str
    price_version: PriceVersionId | None
    stop_grace_seconds: int
    time_limit_seconds: int | None
    priority: int
    gang: bool


async def insert_allocations(unit: UnitOfWork, new: Sequence[NewAllocation], epoch: int, bound_at: datetime) -> None:
    """Stores new allocations."""
    await unit.execute(_INSERT, *zip(*new, strict=True), epoch, bound_at)


async def update_allocations(unit: UnitOfWork, records: Sequence[AllocationRecord]) -> None:
    """Writes what may change of allocations whose rows are locked."""
    await unit.execute(
        "UPDATE allocation a SET state = x.s, active_at = x.aa, stop_requested_at = x.sa, stop_reason = x.sr,"
        " waived_from = x.w, released_at = x.ra, reason = x.r, exit_code = x.e, last_sequence = x.q,"
        " order_sent_at = x.os, generation = x.g, gang_end = x.ge, claimed_by = x.cb"
        " FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::text[], $6::timestamptz[],"
        " $7::timestamptz[], $8::text[], $9::int[], $10::bigint[], $11::timestamptz[], $12::bigint[],"
        " $13::text[], $14::uuid[])"
        " AS x(id, s, aa, sa, sr, w, ra, r, e, q, os, g, ge, cb) WHERE a.id = x.id",
        [record.id for record in records],
        [record.state.value for record in records],
        [record.active_at for record in records],
        [record.stop_requested_at for record in records],
        [None if record.stop_reason is None else record.stop_reason.value for record in records],
        [record.waived_from for record in records],
        [record.released_at for record in records],
        [None if record.reason is None else record.reason.value for record in records],
        [record.exit_code for record in records],
        [record.last_sequence for record in records],
        [record.order_sent_at for record in records],
        [record.generation for record in records],
        [None if record.gang_end is None else record.gang_end.value for record in records],
        [record.claimed_by for record in records],
    )


async def lock_allocations(unit: UnitOfWork, ids: Sequence[UUID]) -> list[asyncpg.Record]:
    """Allocations locked in the order of their ids, with the present attempt and state of their task.

    The caller has locked their jobs.
    """
    return await unit.fetch(
        "SELECT a.*, t.attempt AS task_attempt, t.state AS task_state FROM allocation a JOIN task t ON t.id = a.task_id"
        " WHERE a.id = ANY($1) ORDER BY a.id FOR NO KEY UPDATE OF a",
        ids,
    )


async def find_jobs_of(unit: UnitOfWork, allocations: Sequence[UUID]) -> list[UUID]:
    """The jobs that the allocations belong to."""
    rows = await unit.fetch("SELECT DISTINCT job_id FROM allocation WHERE id = ANY($1)", allocations)
    return [row["job_id"] for row in rows]


async def list_restartable(unit: UnitOfWork, pool: UUID, cool_down_seconds: int) -> list[asyncpg.Record]:
    """Running allocations of a pool whose jobs let a stopped task start again elsewhere, the latest first.

    Not those that became active less than `cool_down_seconds` ago, nor a part of a gang.
    """
    return await unit.fetch(
        "SELECT a.id, a.job_id, a.job_name, a.group_name, a.index, a.active_at"
        " FROM allocation a JOIN job j ON j.id = a.job_id"
        " WHERE a.pool_id = $1 AND a.state = 'active' AND NOT a.gang AND NOT j.cancel_requested"
        " AND a.active_at <= clock_timestamp() - make_interval(secs => $2)"
        " AND j.spec->'retry'->'on' @> '[\"preempted\"]' AND (j.spec->'retry'->>'max')::int >= a.attempt"
        " ORDER BY a.active_at DESC, a.id LIMIT 5000",
        pool,
        float(cool_down_seconds),
    )


async def find_gangs_of(unit: UnitOfWork, allocations: Sequence[UUID]) -> list[UUID]:
    """The live allocations of every gang that one of the allocations belongs to; the caller has locked their jobs.

    A job has one gang: the tasks of all its groups that start together.
    """
    rows = await unit.fetch(
        "SELECT p.id FROM allocation a JOIN allocation p ON p.job_id = a.job_id AND p.gang"
        " AND p.state <> 'released' WHERE a.id = ANY($1) AND a.gang",
        allocations,
    )
    return [row["id"] for row in rows]


async def get_allocation(unit: UnitOfWork, allocation: AllocationId) -> AllocationRecord:
    """The allocation as the caller's scope may see it.

    Raises:
        ProblemError: 404 `scheduler.allocation.not_found`.
    """
    row = await unit.fetchrow("SELECT * FROM allocation WHERE id = $1", allocation)
    if row is None:
        raise ProblemError(ErrorCode.ALLOCATION_NOT_FOUND, f"There is no allocation {allocation}.")
    return allocation_record(row)


# What the leader keeps of an allocation: 100,000 of them are read when another one takes over.
_HELD = (
    "id, tenant_id, project_id, virtual_pool_id, node_id, job_id, task_id, group_name, cpu_milli, memory_mib, flavor,"
    " state, bound_at, time_limit_seconds, stop_grace_seconds, priority, gang, claimed_by,"
    " devices::text AS devices_text, labels::text AS labels_text"
)


async def list_live(unit: UnitOfWork, nodes: Sequence[UUID] | None = None) -> list[asyncpg.Record]:
    """Allocations that hold something, on some nodes or (None) on all."""
    return await unit.fetch(
        f"SELECT {_HELD} FROM allocation WHERE state <> 'released' AND ($1::uuid[] IS NULL OR node_id = ANY($1))",
        nodes,
    )


async def list_live_of(unit: UnitOfWork, virtual_pool: UUID) -> list[asyncpg.Record]:
    """What a virtual pool holds."""
    return await unit.fetch(
        f"SELECT {_HELD} FROM allocation WHERE state <> 'released' AND virtual_pool_id = $1", virtual_pool
    )


async def read_states(unit: UnitOfWork, allocations: Iterable[UUID]) -> dict[UUID, AllocationState]:
    """The present states of allocations."""
    rows = await unit.fetch("SELECT id, state FROM allocation WHERE id = ANY($1)", list(allocations))
    return {row["id"]: AllocationState(row["state"]) for row in rows}


async def list_live_ids(unit: UnitOfWork) -> list[UUID]:
    """The ids of all allocations that hold something."""
    rows = await unit.fetch("SELECT id FROM allocation WHERE state <> 'released'")
    return [row["id"] for row in rows]


async def list_stopping(unit: UnitOfWork) -> list[tuple[AllocationId, TaskId | None]]:
    """The allocations that are being stopped, each with the task for whose sake, if that still waits."""
    rows = await unit.fetch(
        "SELECT a.id, t.id AS claimant FROM allocation a"
        " LEFT JOIN task t ON t.id = a.claimed_by AND t.state = 'pending' WHERE a.state = 'releasing'"
    )
    return [
        (AllocationId.of(row["id"]), None if row["claimant"] is None else TaskId.of(row["claimant"])) for row in rows
    ]


async def list_live_of_job(unit: UnitOfWork, job: JobId, limit: int) -> list[AllocationRecord]:
    """What a job's tasks hold now, the first of them by id."""
    rows = await unit.fetch(
        "SELECT * FROM allocation WHERE job_id = $1 AND state <> 'released' ORDER BY id LIMIT $2", job, limit
    )
    return [allocation_record(row) for row in rows]


async def list_by_ids(unit: UnitOfWork, ids: Sequence[UUID]) -> list[asyncpg.Record]:
    """Those of the allocations that there are."""
    return await unit.fetch(f"SELECT {_HELD} FROM allocation WHERE id = ANY($1)", ids)


@dataclass(frozen=True, slots=True)
class AllocationFilter:
    """Which allocations a list shows; empty and None = any. Every label wanted must be there."""

    job: JobId | None = None
    node: NodeId | None = None
    virtual_pool: VirtualPoolId | None = None
    states: Sequence[AllocationState] = ()
    project: ProjectId | None = None
    labels: Sequence[str] = ()
    tenant: TenantId | None = None
    bound: Span = EVER

    def where(self) -> Where:
        """The conditions."""
        where = Where()
        where.add("job_id = {}", self.job)
        where.add("node_id = {}", self.node)
        where.add("virtual_pool_id = {}", self.virtual_pool)
        where.among("state", self.states)
        where.add("project_id = {}", self.project)
        where.labelled("labels", self.labels)
        where.add("tenant_id = {}", self.tenant)
        where.within("bound_at", self.bound, "id")
        return where


async def list_allocations(
    unit: UnitOfWork, after: UUID | None, limit: int, wanted: AllocationFilter
) -> list[AllocationRecord]:
    """Allocations by id."""
    where = wanted.where()
    where.after("id", after)
    rows = await unit.fetch(
        f"SELECT * FROM allocation{where.text()} ORDER BY id LIMIT {where.value(limit)}", *where.arguments
    )
    return [allocation_record(row) for row in rows]
