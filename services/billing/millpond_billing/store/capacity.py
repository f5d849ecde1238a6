"""What every node offered, as spans in time: the other side of conservation."""

from collections.abc import Mapping
from datetime import datetime

import asyncpg

from millpond_billing.domain.conservation import Capacity
from millpond_billing.domain.timeline import instant_of
from millpond_contracts.bodies.nodes import NodeState, NodeView
from millpond_contracts.ids import NodeId
from millpond_contracts.prices import Resource, Sku
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_contracts.resources import DeviceHealth
from millpond_kernel.uow import UnitOfWork


async def note_node(unit: UnitOfWork, node: NodeView, at: datetime) -> None:
    """Ends the spans that a change of the node ends, and begins new ones from `at` on."""
    newer = await unit.execute(
        "INSERT INTO node_view AS v (node_id, pool_id, name, generation) VALUES ($1, $2, $3, $4) ON CONFLICT (node_id)"
        " DO UPDATE SET pool_id = excluded.pool_id, name = excluded.name, generation = excluded.generation"
        " WHERE excluded.generation > v.generation",
        node.node_id,
        node.pool_id,
        node.name,
        node.generation,
    )
    if not newer:
        return
    offered = offered_items(node)
    rows = await unit.fetch(
        "SELECT item, start_at, sku, amount, available FROM capacity_span WHERE node_id = $1 AND end_at IS NULL",
        node.node_id,
    )
    # Time never runs back within an item: what is told with an earlier instant counts from the last one.
    starts = {row["item"]: max(at, row["start_at"]) for row in rows}
    same = {row["item"] for row in rows if offered.get(row["item"]) == (row["sku"], row["amount"], row["available"])}
    for item in starts.keys() - same:
        await _end_span(unit, node.node_id, item, starts[item])
    for item in offered.keys() - same:
        await _begin_span(unit, node.node_id, item, offered[item], starts.get(item, at))


async def _end_span(unit: UnitOfWork, node_id: NodeId, item: str, at: datetime) -> None:
    """Ends the open span; one without length never was."""
    await unit.execute(
        "DELETE FROM capacity_span WHERE node_id = $1 AND item = $2 AND end_at IS NULL AND start_at = $3",
        node_id,
        item,
        at,
    )
    await unit.execute(
        "UPDATE capacity_span SET end_at = $3 WHERE node_id = $1 AND item = $2 AND end_at IS NULL", node_id, item, at
    )


async def _begin_span(unit: UnitOfWork, node_id: NodeId, item: str, offer: tuple[str, int, bool], at: datetime) -> None:
    """Begins a span at `at`, or where the last one of the item ended when that is later."""
    await unit.execute(
        "INSERT INTO capacity_span (node_id, item, start_at, sku, amount, available) SELECT $1::uuid, $2::text,"
        " greatest($3::timestamptz, (SELECT max(end_at) FROM capacity_span WHERE node_id = $1 AND item = $2)),"
        " $4::text, $5::bigint, $6::boolean",
        node_id,
        item,
        at,
        *offer,
    )


def offered_items(node: NodeView) -> Mapping[str, tuple[str, int, bool]]:
    """item -> (SKU, smallest units, available): `cpu`, `memory` and each device by id; nothing of a removed node."""
    if node.state is NodeState.REMOVED:
        return {}
    items: dict[str, tuple[str, int, bool]] = {}
    for item, resource, amount in (
        ("cpu", Resource.CPU, node.cpu_milli),
        ("memory", Resource.MEMORY, node.memory_mib),
    ):
        if amount:
            items[item] = (str(Sku(resource)), amount, node.schedulable)
    for device in node.devices:
        healthy = device.health in (DeviceHealth.HEALTHY, DeviceHealth.DEGRADED)
        sku = str(Sku(Resource.DEVICE, device.flavor))
        items[str(device.device_id)] = (sku, WHOLE_DEVICE_MILLI, node.schedulable and healthy)
    return items


async def list_spans(
    unit: UnitOfWork, node_id: NodeId, start_at: datetime, end_at: datetime
) -> dict[str, tuple[str, list[Capacity]]]:
    """item -> (SKU, spans cut to the interval), of one node."""
    rows = await unit.fetch(
        "SELECT * FROM capacity_span WHERE node_id = $1 AND start_at < $3 AND (end_at IS NULL OR end_at > $2)"
        " ORDER BY item, start_at",
        node_id,
        start_at,
        end_at,
    )
    spans: dict[str, tuple[str, list[Capacity]]] = {}
    for row in rows:
        _, listed = spans.setdefault(row["item"], (row["sku"], []))
        end = end_at if row["end_at"] is None else min(end_at, row["end_at"])
        listed.append(
            Capacity(instant_of(max(start_at, row["start_at"])), instant_of(end), row["amount"], row["available"])
        )
    return spans


async def list_nodes(unit: UnitOfWork) -> list[asyncpg.Record]:
    """Every node ever told of."""
    return await unit.fetch("SELECT * FROM node_view ORDER BY node_id")
