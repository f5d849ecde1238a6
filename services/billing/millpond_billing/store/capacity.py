"""What every node offered, as spans in time: the other side of conservation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from millpond_billing.domain.conservation import Capacity
from millpond_billing.domain.timeline import instant_of
from millpond_contracts.bodies.nodes import Market, NodeState, NodeView
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.prices import Resource, Sku
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_contracts.resources import DeviceHealth
from millpond_kernel.uow import UnitOfWork

NODE_BATCH = 50
_OFFER = "sku, amount, available, pool_id, market"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node offers of one item: smallest units of a SKU, whether work may use them, where, and how it is paid."""

    sku: str
    amount: int
    available: bool
    pool_id: PoolId
    market: str

    def values(self) -> tuple[object, ...]:
        """The columns, in their order."""
        return (self.sku, self.amount, self.available, self.pool_id, self.market)


@dataclass(frozen=True, slots=True)
class OfferedSpan:
    """Capacity over a time, in which pool, and how the operator paid for it."""

    capacity: Capacity
    pool_id: PoolId
    market: Market


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
        f"SELECT item, start_at, {_OFFER} FROM capacity_span WHERE node_id = $1 AND end_at IS NULL",
        node.node_id,
    )
    # Time never runs back within an item: what is told with an earlier instant counts from the last one.
    starts = {row["item"]: max(at, row["start_at"]) for row in rows}
    same = {row["item"] for row in rows if row["item"] in offered and _is_same(offered[row["item"]], row)}
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


async def _begin_span(unit: UnitOfWork, node_id: NodeId, item: str, offer: Offer, at: datetime) -> None:
    """Begins a span at `at`, or where the last one of the item ended when that is later."""
    await unit.execute(
        f"INSERT INTO capacity_span (node_id, item, start_at, {_OFFER}) SELECT $1::uuid, $2::text,"
        " greatest($3::timestamptz, (SELECT max(end_at) FROM capacity_span WHERE node_id = $1 AND item = $2)),"
        " $4::text, $5::bigint, $6::boolean, $7::uuid, $8::text",
        node_id,
        item,
        at,
        *offer.values(),
    )


def _is_same(offer: Offer, row: asyncpg.Record) -> bool:
    return offer.values() == (row["sku"], row["amount"], row["available"], row["pool_id"], row["market"])


def offered_items(node: NodeView) -> Mapping[str, Offer]:
    """item -> what is offered of it: `cpu`, `memory` and each device by id; nothing of a removed node."""
    if node.state is NodeState.REMOVED:
        return {}
    items: dict[str, Offer] = {}

    def offer(sku: Sku, amount: int, is_fit: bool = True) -> Offer:
        return Offer(str(sku), amount, node.schedulable and is_fit, node.pool_id, node.market.value)

    for item, resource, amount in (
        ("cpu", Resource.CPU, node.cpu_milli),
        ("memory", Resource.MEMORY, node.memory_mib),
    ):
        if amount:
            items[item] = offer(Sku(resource), amount)
    for device in node.devices:
        healthy = device.health in (DeviceHealth.HEALTHY, DeviceHealth.DEGRADED)
        items[str(device.device_id)] = offer(Sku(Resource.DEVICE, device.flavor), WHOLE_DEVICE_MILLI, healthy)
    return items


async def list_spans(
    unit: UnitOfWork, node_ids: Sequence[NodeId], start_at: datetime, end_at: datetime
) -> dict[NodeId, dict[str, tuple[str, list[OfferedSpan]]]]:
    """Node -> item -> (SKU, spans cut to the interval, in order of time); a node without any has no items."""
    rows = await unit.fetch(
        "SELECT s.*, coalesce(s.pool_id, n.pool_id) AS pool FROM capacity_span s JOIN node_view n USING (node_id)"
        " WHERE node_id = ANY($1::uuid[]) AND start_at < $3 AND (end_at IS NULL OR end_at > $2)"
        " ORDER BY node_id, item, start_at",
        list(node_ids),
        start_at,
        end_at,
    )
    found: dict[NodeId, dict[str, tuple[str, list[OfferedSpan]]]] = {node_id: {} for node_id in node_ids}
    for row in rows:
        _, listed = found[NodeId.of(row["node_id"])].setdefault(row["item"], (row["sku"], []))
        end = end_at if row["end_at"] is None else min(end_at, row["end_at"])
        capacity = Capacity(
            instant_of(max(start_at, row["start_at"])), instant_of(end), row["amount"], row["available"]
        )
        listed.append(OfferedSpan(capacity, PoolId.of(row["pool"]), Market(row["market"] or Market.ON_DEMAND)))
    return found


async def list_node_batches(
    unit: UnitOfWork, start_at: datetime, end_at: datetime, node_id: NodeId | None = None
) -> list[Sequence[NodeId]]:
    """The nodes (one, when named) that offered something at some time in `[start_at, end_at)`, by id, in batches."""
    rows = await unit.fetch(
        "SELECT DISTINCT node_id FROM capacity_span WHERE start_at < $2 AND (end_at IS NULL OR end_at > $1)"
        " AND ($3::uuid IS NULL OR node_id = $3) ORDER BY node_id",
        start_at,
        end_at,
        node_id,
    )
    found = [NodeId.of(row["node_id"]) for row in rows]
    return [found[place : place + NODE_BATCH] for place in range(0, len(found), NODE_BATCH)]
