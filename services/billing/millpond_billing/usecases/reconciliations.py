"""Whether everything adds up: where a node's capacity went, and whether a statement equals the metered time."""

from collections.abc import Sequence
from datetime import datetime

from millpond_billing.domain.conservation import Held, TimeState, conserve, held_spans
from millpond_billing.domain.timeline import Timeline, instant_of
from millpond_billing.store.allocations import each_allocation, timeline_of
from millpond_billing.store.capacity import list_nodes, list_spans
from millpond_contracts.bodies.bills import ConservationLine
from millpond_contracts.bodies.jobs import AllocationView
from millpond_contracts.ids import NodeId
from millpond_contracts.prices import Resource, Sku
from millpond_kernel.uow import UnitOfWork


async def conservation_lines(
    unit: UnitOfWork, start_at: datetime, end_at: datetime, node_id: NodeId | None = None
) -> list[ConservationLine]:
    """Per node and item: amount x microseconds by state, and the difference from the capacity, which is zero."""
    lines: list[ConservationLine] = []
    for row in await list_nodes(unit):
        node = NodeId.of(row["node_id"])
        if node_id is None or node == node_id:
            lines += await _node_lines(unit, node, start_at, end_at)
    return lines


async def _node_lines(
    unit: UnitOfWork, node_id: NodeId, start_at: datetime, end_at: datetime
) -> list[ConservationLine]:
    start, end = instant_of(start_at), instant_of(end_at)
    held = [(allocation, timeline_of(allocation)) async for allocation in each_allocation(unit, node_id, end_at)]
    lines = []
    for item, (sku, spans) in (await list_spans(unit, node_id, start_at, end_at)).items():
        parsed = Sku.parse(sku)
        result = conserve(spans, _held_of(item, parsed, held, end), start, end)
        lines.append(
            ConservationLine(
                node_id=node_id,
                item=item,
                sku=sku,
                capacity=result.capacity,
                active=result.by_state[TimeState.ACTIVE],
                held_unbilled=result.held_unbilled,
                idle=result.by_state[TimeState.IDLE],
                unavailable=result.by_state[TimeState.UNAVAILABLE],
                difference=result.difference,
            )
        )
    return lines


def _held_of(item: str, sku: Sku, held: Sequence[tuple[AllocationView, Timeline]], end: int) -> list[Held]:
    spans: list[Held] = []
    for allocation, timeline in held:
        if sku.resource is not Resource.DEVICE:
            spans += held_spans(timeline, Sku(sku.resource, term=timeline.skus()[0].term), end)
            continue
        for share in allocation.devices:
            if str(share.device_id) == item:
                amount = share.milli
                spans += [
                    Held(one.allocation_id, one.state, amount, one.start, one.end)
                    for one in held_spans(timeline, Sku(Resource.DEVICE, share.flavor, timeline.skus()[0].term), end)
                ]
    return spans
