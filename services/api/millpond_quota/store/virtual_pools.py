"""Rows of virtual pools, and the views of pools and capacity that their limits are checked against."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.pools import PoolCapacity, PoolView
from millpond_contracts.bodies.tenants import Limits, Preemption, QueuePolicy, VirtualPoolSpec, VirtualPoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import PoolId, TenantId, VirtualPoolId
from millpond_kernel.filters import Where
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


def virtual_pool_view(row: asyncpg.Record) -> VirtualPoolView:
    """The virtual pool of a row."""
    return VirtualPoolView(
        virtual_pool_id=VirtualPoolId.of(row["id"]),
        tenant_id=TenantId.of(row["tenant_id"]),
        pool_id=PoolId.of(row["pool_id"]),
        name=row["name"],
        limits=Limits.model_validate(row["limits"]),
        policy=QueuePolicy(row["policy"]),
        preemption=Preemption(row["preemption"]),
        minimum_runtime_seconds=row["minimum_runtime_seconds"],
        labels=row["labels"],
        deleted=row["deleted"],
        reclaim_at=row["reclaim_at"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_virtual_pool(unit: UnitOfWork, spec: VirtualPoolSpec) -> VirtualPoolView:
    """A new virtual pool.

    Raises:
        ProblemError: 409 `kernel.name.taken`.
    """
    row = await unit.fetchrow(
        "INSERT INTO virtual_pool (id, tenant_id, pool_id, name, limits, policy, labels, preemption,"
        " minimum_runtime_seconds, generation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1)"
        " ON CONFLICT (tenant_id, name) WHERE NOT deleted DO NOTHING RETURNING *",
        VirtualPoolId.new(),
        spec.tenant_id,
        spec.pool_id,
        spec.name,
        spec.limits.model_dump(mode="json"),
        spec.policy.value,
        spec.labels,
        spec.preemption.value,
        spec.minimum_runtime_seconds,
    )
    if row is None:
        raise ProblemError(ErrorCode.NAME_TAKEN, f"This tenant has a virtual pool named {spec.name!r}.")
    return virtual_pool_view(row)


async def get_virtual_pool(unit: UnitOfWork, virtual_pool_id: VirtualPoolId, *, lock: bool = False) -> VirtualPoolView:
    """The virtual pool, locked when asked.

    Raises:
        ProblemError: 404 `quota.virtual_pool.not_found`.
    """
    row = await unit.fetchrow(
        "SELECT * FROM virtual_pool WHERE id = $1 AND NOT deleted" + (" FOR UPDATE" if lock else ""), virtual_pool_id
    )
    if row is None:
        raise ProblemError(ErrorCode.VIRTUAL_POOL_NOT_FOUND, f"There is no virtual pool {virtual_pool_id}.")
    return virtual_pool_view(row)


async def list_virtual_pools(
    unit: UnitOfWork,
    after: UUID | None,
    limit: int,
    *,
    tenant_id: TenantId | None = None,
    pool_id: PoolId | None = None,
    name: str | None = None,
    labels: Sequence[str] = (),
) -> list[asyncpg.Record]:
    """Virtual pools by id."""
    where = Where(conditions=["NOT deleted"])
    where.after("id", after)
    where.add("tenant_id = {}", tenant_id)
    where.add("pool_id = {}", pool_id)
    where.add("name = {}", name)
    where.labelled("labels", labels)
    return await unit.fetch(
        f"SELECT * FROM virtual_pool{where.text()} ORDER BY id LIMIT {where.value(limit)}", *where.arguments
    )


async def update_virtual_pool(unit: UnitOfWork, changed: VirtualPoolView) -> VirtualPoolView:
    """The locked virtual pool as it is to be, with a risen generation."""
    row = await unit.fetchrow(
        "UPDATE virtual_pool SET limits = $2, policy = $3, labels = $4, deleted = $5, reclaim_at = $6, preemption = $7,"
        " minimum_runtime_seconds = $8, generation = generation + 1 WHERE id = $1 RETURNING *",
        changed.virtual_pool_id,
        changed.limits.model_dump(mode="json"),
        changed.policy.value,
        changed.labels,
        changed.deleted,
        changed.reclaim_at,
        changed.preemption.value,
        changed.minimum_runtime_seconds,
    )
    assert row is not None, "the row was locked before"
    return virtual_pool_view(row)


async def lock_pool(unit: UnitOfWork, pool_id: PoolId) -> PoolView:
    """The pool's view, locked so that two changes of its guarantees cannot pass each other.

    Raises:
        ProblemError: 404 `quota.pool.unknown`.
    """
    row = await unit.fetchrow("SELECT body FROM pool_view WHERE pool_id = $1 AND NOT deleted FOR UPDATE", pool_id)
    if row is None:
        raise ProblemError(ErrorCode.POOL_UNKNOWN, f"There is no pool {pool_id}.")
    return PoolView.model_validate(row["body"])


async def find_capacity(unit: UnitOfWork, pool_id: PoolId) -> PoolCapacity | None:
    """The newest capacity figures of a pool, or None before the first machine."""
    body = await unit.fetchval("SELECT body FROM capacity_view WHERE pool_id = $1", pool_id)
    return None if body is None else PoolCapacity.model_validate(body)


async def list_limits_of_pool(unit: UnitOfWork, pool_id: PoolId, but: VirtualPoolId | None) -> list[Limits]:
    """Limits of every virtual pool of a pool but one."""
    rows = await unit.fetch(
        "SELECT limits FROM virtual_pool WHERE pool_id = $1 AND NOT deleted AND ($2::uuid IS NULL OR id <> $2)",
        pool_id,
        but,
    )
    return [Limits.model_validate(row["limits"]) for row in rows]


async def save_pool(unit: UnitOfWork, pool: PoolView, deleted: bool) -> None:
    """Keeps the newest state of a pool."""
    await unit.execute(
        "INSERT INTO pool_view AS v (pool_id, body, deleted, generation) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (pool_id) DO UPDATE SET body = excluded.body, deleted = excluded.deleted,"
        " generation = excluded.generation WHERE excluded.generation > v.generation",
        pool.pool_id,
        pool.model_dump(mode="json"),
        deleted,
        pool.generation,
    )


async def save_capacity(unit: UnitOfWork, capacity: PoolCapacity) -> None:
    """Keeps the newest figures of a pool."""
    await unit.execute(
        "INSERT INTO capacity_view AS v (pool_id, body, generation) VALUES ($1, $2, $3)"
        " ON CONFLICT (pool_id) DO UPDATE SET body = excluded.body, generation = excluded.generation"
        " WHERE excluded.generation > v.generation",
        capacity.pool_id,
        capacity.model_dump(mode="json"),
        capacity.generation,
    )


async def clear_pools(unit: UnitOfWork) -> None:
    """Empties the views of pools and capacity, before they are loaded anew."""
    await unit.execute("DELETE FROM pool_view")
    await unit.execute("DELETE FROM capacity_view")
