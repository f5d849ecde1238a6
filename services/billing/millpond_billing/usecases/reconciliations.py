"""Where a node's capacity went: amount x microseconds by state; they, and their value, add up to the capacity."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from millpond_billing.domain.conservation import (
    Capacity,
    Conservation,
    Held,
    TimeState,
    conserve,
    held_spans,
    overheld,
    value_at_list,
    with_gaps_held,
)
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.timeline import Timeline, instant_of
from millpond_billing.store.allocations import list_held_on, timeline_of
from millpond_billing.store.capacity import list_node_batches, list_spans
from millpond_billing.store.prices import book_currency, load_price_book
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.bodies.bills import ConservationLine, ConservationValue
from millpond_contracts.ids import NodeId
from millpond_contracts.prices import Resource, Sku, Term
from millpond_contracts.quantities import ExactDecimal
from millpond_kernel.uow import UnitOfWork


@dataclass(frozen=True, slots=True)
class _Item:
    """One resource of a node over `[start, end)`: what there was of it, and what was held."""

    node_id: NodeId
    name: str
    sku: Sku
    start: int
    end: int
    capacity: Sequence[Capacity]
    held: Sequence[Held]


async def conservation_lines(
    unit: UnitOfWork, start_at: datetime, end_at: datetime, node_id: NodeId | None = None
) -> list[ConservationLine]:
    """Per node and item: amount x microseconds by state and their list value; the difference from both is zero."""
    book = await load_price_book(unit)
    lines: list[ConservationLine] = []
    for batch in await list_node_batches(unit, start_at, end_at, node_id):
        lines += [_line(item, book) for item in await _list_items(unit, batch, start_at, end_at)]
    return lines


async def _list_items(
    unit: UnitOfWork, node_ids: Sequence[NodeId], start_at: datetime, end_at: datetime
) -> list[_Item]:
    start, end = instant_of(start_at), instant_of(end_at)
    offered = await list_spans(unit, node_ids, start_at, end_at)
    holding = await list_held_on(unit, node_ids, start_at, end_at)
    items = []
    for node_id in node_ids:
        holders = [(one, timeline_of(one)) for one in holding[node_id]]
        for name, (text, spans) in offered[node_id].items():
            sku = Sku.parse(text)
            held = [one for holder in holders for one in held_of(name, sku.resource, holder, end)]
            capacity = with_gaps_held([span.capacity for span in spans], held, start, end)
            items.append(_Item(node_id, name, sku, start, end, capacity, held))
    return items


def _line(item: _Item, book: PriceBook) -> ConservationLine:
    """The line of an item; where more is held than there is, the difference says how much."""
    excess = overheld(item.capacity, item.held, item.start, item.end)
    nothing = Conservation(dict.fromkeys(TimeState, 0), 0)
    result = nothing if excess else conserve(item.capacity, item.held, item.start, item.end)
    return ConservationLine(
        node_id=item.node_id,
        item=item.name,
        sku=str(item.sku),
        capacity=result.capacity,
        active=result.by_state[TimeState.ACTIVE],
        held_unbilled=result.held_unbilled,
        idle=result.by_state[TimeState.IDLE],
        unavailable=result.by_state[TimeState.UNAVAILABLE],
        difference=excess or result.difference,
        value=None if excess else _value(item, book),
    )


def _value(item: _Item, book: PriceBook) -> ConservationValue:
    value = value_at_list(item.capacity, item.held, item.start, item.end, book, item.sku)
    return ConservationValue(
        currency=book_currency(book),
        capacity=ExactDecimal(value.capacity),
        active=ExactDecimal(value.by_state[TimeState.ACTIVE]),
        held_unbilled=ExactDecimal(value.held_unbilled),
        idle=ExactDecimal(value.by_state[TimeState.IDLE]),
        unavailable=ExactDecimal(value.by_state[TimeState.UNAVAILABLE]),
        difference=ExactDecimal(value.difference),
    )


def held_of(item: str, resource: Resource, holder: tuple[AllocationView, Timeline], end: int) -> list[Held]:
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
