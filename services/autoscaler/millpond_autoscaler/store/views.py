"""What registry and scheduler published, as this service keeps it: a row changes only on a higher generation."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.pools import PoolCapacity, PoolView
from millpond_contracts.bodies.scaling import NODE_ORDER_LABEL, PoolDemand
from millpond_contracts.ids import NodeId, NodeOrderId, PoolId
from millpond_kernel.uow import UnitOfWork

# The consumers that fill these views, by publisher.
CONSUMERS: Mapping[str, str] = MappingProxyType({"registry": "registry", "scheduler": "demand"})


async def write_pool(unit: UnitOfWork, pool: PoolView, *, deleted: bool) -> None:
    """Takes a pool as the registry tells it."""
    await unit.execute(
        "INSERT INTO pool_view AS v (pool_id, name, deleted, generation) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (pool_id) DO UPDATE SET name = excluded.name, deleted = excluded.deleted,"
        " generation = excluded.generation WHERE excluded.generation > v.generation",
        pool.pool_id,
        pool.name,
        deleted,
        pool.generation,
    )


async def write_capacity(unit: UnitOfWork, capacity: PoolCapacity) -> None:
    """Takes a pool's figures."""
    await unit.execute(
        "INSERT INTO capacity_view AS v (pool_id, body, generation) VALUES ($1, $2, $3) ON CONFLICT (pool_id)"
        " DO UPDATE SET body = excluded.body, generation = excluded.generation"
        " WHERE excluded.generation > v.generation",
        capacity.pool_id,
        capacity.model_dump(mode="json"),
        capacity.generation,
    )


async def write_demand(unit: UnitOfWork, demand: PoolDemand) -> None:
    """Takes what waits in a pool."""
    await unit.execute(
        "INSERT INTO demand_view AS v (pool_id, body, generation) VALUES ($1, $2, $3) ON CONFLICT (pool_id)"
        " DO UPDATE SET body = excluded.body, generation = excluded.generation"
        " WHERE excluded.generation > v.generation",
        demand.pool_id,
        demand.model_dump(mode="json"),
        demand.generation,
    )


async def write_node(unit: UnitOfWork, node: NodeView) -> None:
    """Takes a node: its state, its drain, its devices by flavor, and the order that its label names."""
    drain = None if node.drain is None else node.drain.model_dump(mode="json")
    await unit.execute(
        "INSERT INTO node_view AS v (node_id, pool_id, order_id, state, schedulable, cordon_reasons, drain, flavors,"
        " generation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (node_id) DO UPDATE SET"
        " pool_id = excluded.pool_id, order_id = excluded.order_id, state = excluded.state,"
        " schedulable = excluded.schedulable, cordon_reasons = excluded.cordon_reasons, drain = excluded.drain,"
        " flavors = excluded.flavors, generation = excluded.generation WHERE excluded.generation > v.generation",
        node.node_id,
        node.pool_id,
        _order_of(node),
        node.state.value,
        node.schedulable,
        [reason.value for reason in node.cordon_reasons],
        drain,
        {device.identity: device.flavor for device in node.devices},
        node.generation,
    )


def _order_of(node: NodeView) -> str | None:
    """The order that the node's label names, written as PostgreSQL writes a uuid; nonsense names none."""
    label = node.labels.get(NODE_ORDER_LABEL)
    if label is None:
        return None
    try:
        return str(UUID(int=NodeOrderId.parse(label).int))
    except ValueError:
        return None


async def read_capacity(unit: UnitOfWork, pool_id: PoolId) -> PoolCapacity | None:
    """The pool's figures as told last."""
    body = await unit.fetchval("SELECT body FROM capacity_view WHERE pool_id = $1", pool_id)
    return None if body is None else PoolCapacity.model_validate(body)


async def has_nodes(unit: UnitOfWork, pool_id: PoolId) -> bool:
    """Whether the pool has any node, in whatever state."""
    return bool(
        await unit.fetchval(
            "SELECT EXISTS (SELECT 1 FROM node_view WHERE pool_id = $1 AND state <> 'removed')", pool_id
        )
    )


async def read_demand(unit: UnitOfWork, pool_id: PoolId) -> PoolDemand | None:
    """What waits in the pool as told last; None = nothing was ever told, so nothing waits."""
    body = await unit.fetchval("SELECT body FROM demand_view WHERE pool_id = $1", pool_id)
    return None if body is None else PoolDemand.model_validate(body)


async def count_devices(unit: UnitOfWork, pool_id: PoolId, flavor: str) -> int:
    """Devices of the flavor on nodes that take work: so many should tell their signals."""
    return int(
        await unit.fetchval(
            "SELECT count(*) FROM node_view n, jsonb_each_text(n.flavors) AS d(identity, flavor)"
            " WHERE n.pool_id = $1 AND n.state <> 'removed' AND n.schedulable AND d.flavor = $2",
            pool_id,
            flavor,
        )
    )


async def list_flavors(unit: UnitOfWork, node_ids: Sequence[NodeId]) -> dict[NodeId, dict[str, Any]]:
    """Device identity -> flavor, by node."""
    rows = await unit.fetch("SELECT node_id, flavors FROM node_view WHERE node_id = ANY($1)", list(node_ids))
    return {NodeId.of(row["node_id"]): row["flavors"] for row in rows}


async def clear_registry(unit: UnitOfWork) -> None:
    """Empties the views of the registry's data, for a rebuild."""
    await unit.execute("DELETE FROM node_view")
    await unit.execute("DELETE FROM capacity_view")
    await unit.execute("DELETE FROM pool_view")


async def clear_scheduler(unit: UnitOfWork) -> None:
    """Empties the view of the scheduler's data, for a rebuild."""
    await unit.execute("DELETE FROM demand_view")
