"""SQL of pools."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.pools import PoolSpec, PoolView
from millpond_contracts.ids import PoolId
from millpond_kernel.filters import Where
from millpond_kernel.uow import UnitOfWork

_COLUMNS = "id, spec, shard, created_at, generation"


def pool_view(row: asyncpg.Record) -> PoolView:
    """The pool of a row."""
    return PoolView(
        pool_id=PoolId.of(row["id"]),
        shard=row["shard"],
        created_at=row["created_at"],
        generation=row["generation"],
        **PoolSpec.model_validate(row["spec"]).model_dump(),
    )


async def find_pool(unit: UnitOfWork, pool_id: PoolId) -> PoolView | None:
    """The pool, when it exists and the scope may see it."""
    row = await unit.fetchrow(f"SELECT {_COLUMNS} FROM pool WHERE id = $1", pool_id)
    return None if row is None else pool_view(row)


async def lock_pool(unit: UnitOfWork, pool_id: PoolId) -> PoolView | None:
    """The pool, kept from deletion and change, and from another node's entry, until the transaction ends."""
    row = await unit.fetchrow(f"SELECT {_COLUMNS} FROM pool WHERE id = $1 FOR NO KEY UPDATE", pool_id)
    return None if row is None else pool_view(row)


async def lock_default_pool(unit: UnitOfWork) -> None:
    """Makes those who look for a first pool follow one another until the transaction ends."""
    await unit.execute("SELECT pg_advisory_xact_lock(hashtext('registry/default_pool'))")


async def list_pools(
    unit: UnitOfWork, after: UUID | None, limit: int, name: str | None = None, labels: Sequence[str] = ()
) -> list[asyncpg.Record]:
    """Rows of pools by id."""
    where = Where()
    where.after("id", after)
    where.add("name = {}", name)
    where.labelled("(spec->'labels')", labels)
    return await unit.fetch(
        f"SELECT {_COLUMNS} FROM pool{where.text()} ORDER BY id LIMIT {where.value(limit)}", *where.arguments
    )


async def read_all_pools(unit: UnitOfWork) -> Sequence[PoolView]:
    """Every pool; there are few."""
    return [pool_view(row) for row in await unit.fetch(f"SELECT {_COLUMNS} FROM pool")]


async def insert_pool(unit: UnitOfWork, pool_id: PoolId, spec: PoolSpec) -> PoolView | None:
    """The new pool, with its capacity row; None when the name is taken."""
    row = await unit.fetchrow(
        "INSERT INTO pool (id, name, priority, tenant_id, spec, unreachable_after_seconds, generation)"
        f" VALUES ($1, $2, $3, $4, $5, $6, 1) ON CONFLICT ON CONSTRAINT pool_name DO NOTHING RETURNING {_COLUMNS}",
        pool_id,
        *_values(spec),
    )
    if row is None:
        return None
    await unit.execute("INSERT INTO capacity (pool_id, tally, generation) VALUES ($1, $2, 1)", pool_id, {})
    return pool_view(row)


async def update_pool(unit: UnitOfWork, pool: PoolView, spec: PoolSpec) -> PoolView:
    """The pool after a replacement; raises asyncpg.UniqueViolationError when the new name is taken."""
    row = await unit.fetchrow(
        "UPDATE pool SET name = $2, priority = $3, tenant_id = $4, spec = $5, unreachable_after_seconds = $6,"
        f" generation = generation + 1 WHERE id = $1 AND generation = $7 RETURNING {_COLUMNS}",
        pool.pool_id,
        *_values(spec),
        pool.generation,
    )
    assert row is not None, "the pool's row is locked"
    return pool_view(row)


async def delete_pool(unit: UnitOfWork, pool_id: PoolId) -> None:
    """Removes the pool; tokens that led into it are revoked."""
    deleted = await unit.execute("DELETE FROM pool WHERE id = $1", pool_id)
    assert deleted == 1, "the pool's row is locked"
    await unit.execute("UPDATE join_token SET revoked = true, generation = generation + 1 WHERE pool_id = $1", pool_id)


async def count_nodes(unit: UnitOfWork, pool_id: PoolId) -> int:
    """The nodes that are in the pool, or on their way into it."""
    return int(
        await unit.fetchval(
            "SELECT count(*) FROM node WHERE (pool_id = $1 OR move_to = $1) AND state <> 'removed'", pool_id
        )
    )


def _values(spec: PoolSpec) -> tuple[object, ...]:
    return (
        spec.name,
        spec.priority,
        spec.tenant_id,
        # Without `moves` where there are none, so that the version before reads it too.
        spec.model_dump(mode="json", exclude=None if spec.moves else {"moves"}),
        spec.unreachable_after_seconds,
    )
