"""SQL of nodes. Every change locks the row first and raises the generation; each change marks the node for counting."""

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.nodes import CordonReason, DrainView, Market, NodeState
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import NodeInventory
from millpond_kernel.filters import EVER, Span, Where
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.nodes import Node

_SELECT = "SELECT n.*, h.at AS last_heartbeat_at FROM node n JOIN heartbeat h ON h.node_id = n.id"


def node_of(row: asyncpg.Record) -> Node:
    """The node of a row that `_SELECT` gave."""
    return Node(
        id=NodeId.of(row["id"]),
        pool_id=PoolId.of(row["pool_id"]),
        name=row["name"],
        public_key=bytes(row["public_key"]),
        state=NodeState(row["state"]),
        state_since=row["state_since"],
        cordons=frozenset(CordonReason(reason) for reason in row["cordon_reasons"]),
        drain=None if row["drain"] is None else DrainView.model_validate(row["drain"]),
        market=Market(row["market"]),
        incarnation=row["incarnation"],
        boot_id=row["boot_id"],
        agent_version=row["agent_version"],
        labels=row["labels"],
        inventory=NodeInventory.model_validate(row["inventory"]),
        sequence=row["inventory_sequence"],
        last_heartbeat_at=row["last_heartbeat_at"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def find_node(unit: UnitOfWork, node_id: NodeId) -> Node | None:
    """The node, removed ones too."""
    row = await unit.fetchrow(f"{_SELECT} WHERE n.id = $1", node_id)
    return None if row is None else node_of(row)


async def lock_node(unit: UnitOfWork, node_id: NodeId) -> Node | None:
    """The node, its row kept for this transaction."""
    row = await unit.fetchrow(f"{_SELECT} WHERE n.id = $1 FOR NO KEY UPDATE OF n", node_id)
    return None if row is None else node_of(row)


async def find_node_by_key(unit: UnitOfWork, public_key: bytes) -> Node | None:
    """The node that is bound to a key. Locks the key, so that two joins with one key follow one another."""
    await unit.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"node_key/{public_key.hex()}")
    row = await unit.fetchrow(f"{_SELECT} WHERE n.public_key = $1 AND n.state <> 'removed'", public_key)
    return None if row is None else node_of(row)


async def list_nodes(
    unit: UnitOfWork,
    after: UUID | None,
    limit: int,
    *,
    pool_id: PoolId | None = None,
    states: Sequence[NodeState] = (),
    name: str | None = None,
    labels: Sequence[str] = (),
    joined: Span = EVER,
) -> list[Node]:
    """Nodes by id; removed ones only when asked for by state."""
    where = Where()
    where.after("n.id", after)
    where.add("n.pool_id = {}", pool_id)
    where.among("n.state", states or [state for state in NodeState if state is not NodeState.REMOVED])
    where.add("n.name = {}", name)
    where.labelled("n.labels", labels)
    where.within("n.created_at", joined, "n.id")
    rows = await unit.fetch(f"{_SELECT}{where.text()} ORDER BY n.id LIMIT {where.value(limit)}", *where.arguments)
    return [node_of(row) for row in rows]


async def list_all_nodes(unit: UnitOfWork, after: UUID | None, limit: int) -> list[Node]:
    """Nodes by id, removed ones included, for snapshots: a view learns of a removal by the state."""
    rows = await unit.fetch(f"{_SELECT} WHERE ($1::uuid IS NULL OR n.id > $1) ORDER BY n.id LIMIT $2", after, limit)
    return [node_of(row) for row in rows]


async def list_nodes_by_id(unit: UnitOfWork, node_ids: Collection[UUID]) -> list[Node]:
    """The nodes with these ids."""
    return [node_of(row) for row in await unit.fetch(f"{_SELECT} WHERE n.id = ANY($1::uuid[])", list(node_ids))]


async def pools_of(unit: UnitOfWork, node_ids: Sequence[UUID]) -> list[UUID]:
    """The pools that these nodes are in."""
    rows = await unit.fetch("SELECT DISTINCT pool_id FROM node WHERE id = ANY($1::uuid[])", list(node_ids))
    return [row["pool_id"] for row in rows]


async def names_in_pool(unit: UnitOfWork, pool_id: PoolId) -> set[str]:
    """The names in use in a pool."""
    rows = await unit.fetch("SELECT name FROM node WHERE pool_id = $1 AND state <> 'removed'", pool_id)
    return {row["name"] for row in rows}


async def insert_node(unit: UnitOfWork, node: Node, now: datetime) -> None:
    """Stores a node that has just joined."""
    await unit.execute(
        "INSERT INTO node (id, pool_id, name, public_key, state, state_since, cordon_reasons, boot_id, labels,"
        " inventory, created_at, generation, market) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        node.id,
        node.pool_id,
        node.name,
        node.public_key,
        node.state,
        node.state_since,
        sorted(node.cordons),
        node.boot_id,
        node.labels or {},
        inventory_json(node.inventory),
        node.created_at,
        node.generation,
        node.market,
    )
    await unit.execute("INSERT INTO heartbeat (node_id, at) VALUES ($1, $2)", node.id, now)


async def update_node(unit: UnitOfWork, before: Node, after: Node, *, with_inventory: bool = False) -> None:
    """Writes `after` over the locked row of `before`, whose generation it must still have."""
    drain = after.drain
    changed = await unit.execute(
        "UPDATE node SET pool_id = $2, name = $3, state = $4, state_since = $5, cordon_reasons = $6, drain = $7,"
        " move_to = $8, incarnation = $9, boot_id = $10, agent_version = $11, inventory_sequence = $12,"
        " inventory = coalesce($13, inventory), generation = $14, market = $16, labels = $17"
        " WHERE id = $1 AND generation = $15",
        after.id,
        after.pool_id,
        after.name,
        after.state,
        after.state_since,
        sorted(after.cordons),
        None if drain is None else drain.model_dump(mode="json"),
        None if drain is None else drain.move_to,
        after.incarnation,
        after.boot_id,
        after.agent_version,
        after.sequence,
        inventory_json(after.inventory) if with_inventory else None,
        after.generation,
        before.generation,
        after.market,
        after.labels or {},
    )
    assert changed == 1, f"node {after.id} changed under its lock"


def inventory_json(inventory: NodeInventory) -> dict[str, object]:
    """The inventory without its devices, which have rows of their own."""
    return inventory.model_dump(mode="json", exclude={"devices"})
