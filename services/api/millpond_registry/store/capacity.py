"""SQL of capacity: which nodes must be counted again, what each pool's figures contain of a node, and the figures."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.ids import NodeId, PoolId
from millpond_kernel.uow import UnitOfWork


async def mark_node(unit: UnitOfWork, node_id: NodeId) -> None:
    """Asks for the node to be counted again. Marks are only added, so that no writer waits for the count."""
    await unit.execute("INSERT INTO tally_mark (node_id) VALUES ($1)", node_id)


async def mark_nodes(unit: UnitOfWork, node_ids: Iterable[NodeId]) -> None:
    """The same for several."""
    await unit.execute("INSERT INTO tally_mark (node_id) SELECT unnest($1::uuid[])", list(set(node_ids)))


async def mark_pool(unit: UnitOfWork, pool_id: PoolId) -> None:
    """Asks for every node of the pool to be counted again."""
    await unit.execute("INSERT INTO tally_mark (node_id) SELECT id FROM node WHERE pool_id = $1", pool_id)


async def take_marks(unit: UnitOfWork) -> set[UUID]:
    """The marked nodes; what is marked while this transaction runs stays for the next one."""
    return {row["node_id"] for row in await unit.fetch("DELETE FROM tally_mark RETURNING node_id")}


async def read_marks(unit: UnitOfWork) -> set[UUID]:
    """The nodes that changed since they were counted. Read after the nodes: a change that was seen has its mark."""
    return {row["node_id"] for row in await unit.fetch("SELECT DISTINCT node_id FROM tally_mark")}


async def lock_counting(unit: UnitOfWork) -> None:
    """Makes counts follow one another until the transaction ends: each takes away what the one before put in."""
    await unit.execute("SELECT pg_advisory_xact_lock(hashtext('registry/count_capacity'))")


async def tallies_of(unit: UnitOfWork, node_ids: Iterable[UUID]) -> list[asyncpg.Record]:
    """Rows (node_id, pool_id, tally) of what the pools' figures contain of these nodes."""
    return await unit.fetch("SELECT * FROM node_tally WHERE node_id = ANY($1::uuid[])", list(node_ids))


async def tallies_of_pool(unit: UnitOfWork, pool_id: UUID) -> list[asyncpg.Record]:
    """Rows (node_id, pool_id, tally) of what this pool's figures contain."""
    return await unit.fetch("SELECT * FROM node_tally WHERE pool_id = $1", pool_id)


async def put_tallies(unit: UnitOfWork, tallies: Sequence[tuple[UUID, UUID, dict[str, Any]]]) -> None:
    """Stores what the figures of a pool contain of each node."""
    await unit.connection.executemany(
        "INSERT INTO node_tally (node_id, pool_id, tally) VALUES ($1, $2, $3) ON CONFLICT (node_id) DO UPDATE"
        " SET pool_id = excluded.pool_id, tally = excluded.tally",
        tallies,
    )


async def delete_tallies(unit: UnitOfWork, node_ids: Sequence[UUID]) -> None:
    """Forgets nodes that are in no pool's figures any more."""
    await unit.execute("DELETE FROM node_tally WHERE node_id = ANY($1::uuid[])", list(node_ids))


async def lock_figures(unit: UnitOfWork, pool_ids: Sequence[UUID]) -> list[asyncpg.Record]:
    """The rows of these pools, kept for this transaction, always in the same order."""
    return await unit.fetch(
        "SELECT * FROM capacity WHERE pool_id = ANY($1::uuid[]) ORDER BY pool_id FOR UPDATE", list(pool_ids)
    )


async def find_figures(unit: UnitOfWork, pool_id: PoolId) -> asyncpg.Record | None:
    """The row of a pool that the scope may see."""
    return await unit.fetchrow("SELECT * FROM capacity WHERE pool_id = $1", pool_id)


async def read_all_figures(unit: UnitOfWork) -> list[asyncpg.Record]:
    """The rows of all pools; there are few."""
    return await unit.fetch("SELECT * FROM capacity ORDER BY pool_id")


async def list_figures(unit: UnitOfWork, after: UUID, limit: int) -> list[asyncpg.Record]:
    """Rows of pools by id."""
    return await unit.fetch("SELECT * FROM capacity WHERE pool_id > $1 ORDER BY pool_id LIMIT $2", after, limit)


async def update_figures(
    unit: UnitOfWork, pool_id: UUID, tally: dict[str, Any], *, changed: bool, recounted: bool
) -> asyncpg.Record:
    """Writes the locked figures of a pool; the generation rises when they changed."""
    row = await unit.fetchrow(
        "UPDATE capacity SET tally = $2, as_of = clock_timestamp(), generation = generation + $3::int,"
        " recounted_at = CASE WHEN $4 THEN clock_timestamp() ELSE recounted_at END WHERE pool_id = $1 RETURNING *",
        pool_id,
        tally,
        int(changed),
        recounted,
    )
    assert row is not None, f"the figures of pool {pool_id} vanished under their lock"
    return row


async def raise_figures(unit: UnitOfWork, pool_id: UUID) -> int:
    """One more generation of the locked figures, for an event about them."""
    generation: int = await unit.fetchval(
        "UPDATE capacity SET generation = generation + 1 WHERE pool_id = $1 RETURNING generation", pool_id
    )
    return generation


async def nodes_of_pool(unit: UnitOfWork, pool_id: UUID) -> list[UUID]:
    """The nodes that a pool's figures are about."""
    rows = await unit.fetch("SELECT id FROM node WHERE pool_id = $1 AND state <> 'removed' ORDER BY id", pool_id)
    return [row["id"] for row in rows]


async def all_pool_ids(unit: UnitOfWork) -> list[UUID]:
    """Every pool that has figures."""
    return [row["pool_id"] for row in await unit.fetch("SELECT pool_id FROM capacity ORDER BY pool_id")]
