"""Where a node's capacity went: amount x microseconds by state, which add up to the capacity."""

from collections.abc import Sequence
from datetime import datetime

from millpond_billing.domain.conservation import (
    Capacity,
    Conservation,
    Held,
    TimeState,
    conserve,
    held_spans,
    overheld,
    with_gaps_held,
)
from millpond_billing.domain.timeline import Timeline, instant_of
from millpond_billing.store.allocations import list_held_on, timeline_of
from millpond_billing.store.capacity import list_nodes, list_spans
from millpond_contracts.bodies.bills import ConservationLine
from millpond_contracts.bodies.jobs import AllocationView
from millpond_contracts.ids import NodeId
from millpond_contracts.prices import Resource, Sku, Term
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
    holders = [(one, timeline_of(one)) for one in await list_held_on(unit, node_id, start_at, end_at)]
    lines = []
    for item, (sku, spans) in (await list_spans(unit, node_id, start_at, end_at)).items():
        held = [one for holder in holders for one in _held_of(item, Sku.parse(sku).resource, holder, end)]
        lines.append(_line(node_id, item, sku, with_gaps_held(spans, held, start, end), held, (start, end)))
    return lines


def _line(
    node_id: NodeId, item: str, sku: str, capacity: Sequence[Capacity], held: Sequence[Held], interval: tuple[int, int]
) -> ConservationLine:
    """The line of an item; where more is held than there is, the difference says how much."""
    excess = overheld(capacity, held, *interval)
    result = Conservation(dict.fromkeys(TimeState, 0), 0) if excess else conserve(capacity, held, *interval)
    return ConservationLine(
        node_id=node_id,
        item=item,
        sku=sku,
        capacity=result.capacity,
        active=result.by_state[TimeState.ACTIVE],
        held_unbilled=result.held_unbilled,
        idle=result.by_state[TimeState.IDLE],
        unavailable=result.by_state[TimeState.UNAVAILABLE],
        difference=excess or result.difference,
    )


def _held_of(item: str, resource: Resource, holder: tuple[AllocationView, Timeline], end: int) -> list[Held]:
    """What an allocation held of one item of its node, by state."""
    allocation, timeline = holder
    term = Term(allocation.term)
    if resource is not Resource.DEVICE:
        return list(held_spans(timeline, Sku(resource, term=term), end))
    return [
        Held(one.allocation_id, one.state, share.milli, one.start, one.end)
        for share in allocation.devices
        if str(share.device_id) == item
        for one in held_spans(timeline, Sku(Resource.DEVICE, share.flavor, term), end)
    ]
