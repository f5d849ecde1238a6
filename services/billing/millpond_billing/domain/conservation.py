"""Conservation: every microsecond of every amount is active, held but unbilled, idle or unavailable, and nothing else.

One resource at a time: a device, the cores or the memory of a node. Source: docs/decisions (metering, conservation).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise

from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.statements import Statement
from millpond_billing.domain.timeline import Timeline
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import AllocationId
from millpond_contracts.prices import EXACT, Sku, exact_sum


class TimeState(StrEnum):
    """What an amount is doing at an instant."""

    ACTIVE = "active"
    STARTING = "starting"  # held, not billed: bound and not yet confirmed
    RELEASING = "releasing"  # held, not billed: after the provider's stop request
    IDLE = "idle"
    UNAVAILABLE = "unavailable"  # cordoned, unhealthy or unreachable, and not held


class ConservationBroken(ValueError):
    """More is held than there is: over-allocation, or an allocation that should have ended."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """`amount` smallest units exist over `[start, end)`; `available` = new work could be placed on them."""

    start: int
    end: int
    amount: int
    available: bool


@dataclass(frozen=True, slots=True)
class Held:
    """`amount` smallest units held over `[start, end)` by one allocation."""

    allocation_id: AllocationId
    state: TimeState
    amount: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Conservation:
    """Amount x microseconds by state over an interval, and the capacity that they must sum to."""

    by_state: Mapping[TimeState, int]
    capacity: int

    @property
    def held_unbilled(self) -> int:
        """Amount x microseconds held but not billed."""
        return self.by_state[TimeState.STARTING] + self.by_state[TimeState.RELEASING]

    @property
    def difference(self) -> int:
        """The sum of the states less the capacity: zero, or something was lost or counted twice."""
        return sum(self.by_state.values()) - self.capacity


@dataclass(frozen=True, slots=True)
class Valued:
    """The same at the public list price, exact."""

    by_state: Mapping[TimeState, Decimal]
    capacity: Decimal

    @property
    def held_unbilled(self) -> Decimal:
        """The value of what is held but not billed."""
        return EXACT.add(self.by_state[TimeState.STARTING], self.by_state[TimeState.RELEASING])

    @property
    def difference(self) -> Decimal:
        """The value of the states less the value of the capacity: zero to the last digit."""
        return EXACT.subtract(exact_sum(self.by_state.values()), self.capacity)


def held_spans(timeline: Timeline, sku: Sku, until: int) -> tuple[Held, ...]:
    """What an allocation held of `sku` from bind to release, or to `until`, by state."""
    end = until if timeline.released_at is None else min(until, timeline.released_at)
    active_at = end if timeline.active_at is None else min(timeline.active_at, end)
    waived_from = end if timeline.waived_from is None else min(max(timeline.waived_from, active_at), end)
    bounds = (
        (TimeState.STARTING, timeline.bound_at, active_at),
        (TimeState.ACTIVE, active_at, waived_from),
        (TimeState.RELEASING, waived_from, end),
    )
    steps = [since for since, _ in timeline.steps]
    spans: list[Held] = []
    for state, start, stop in bounds:
        points = sorted({start, stop, *(since for since in steps if start < since < stop)})
        for first, last in pairwise(points if start < stop else ()):
            amount = timeline.amount_at(sku, first)
            if amount:
                spans.append(Held(timeline.allocation_id, state, amount, first, last))
    return tuple(spans)


def conserve(capacity: Sequence[Capacity], held: Iterable[Held], start: int, end: int) -> Conservation:
    """Where the capacity of one resource went over `[start, end)`.

    Args:
        capacity: disjoint spans; where there is none, there is no capacity.
        held: spans of all its allocations; they may lie partly or wholly outside.

    Raises:
        ConservationBroken: at some instant more is held than there is.
    """
    by_state = dict.fromkeys(TimeState, 0)
    for first, last, span, in_force in _sweep(capacity, held, start, end):
        rest = 0 if span is None else span.amount
        for one in in_force:
            by_state[one.state] += one.amount * (last - first)
            rest -= one.amount
        if rest < 0:
            holders = ", ".join(sorted(str(one.allocation_id) for one in in_force))
            raise ConservationBroken(f"{-rest} more than there is held from {first} to {last} by {holders}")
        free = TimeState.IDLE if span is not None and span.available else TimeState.UNAVAILABLE
        by_state[free] += rest * (last - first)
    total = sum(one.amount * max(0, min(one.end, end) - max(one.start, start)) for one in capacity)
    return Conservation(by_state, total)


def overheld(capacity: Sequence[Capacity], held: Iterable[Held], start: int, end: int) -> int:
    """Amount x microseconds held beyond the capacity over `[start, end)`: zero unless `conserve` would raise."""
    excess = 0
    for first, last, span, in_force in _sweep(capacity, held, start, end):
        amount = sum(one.amount for one in in_force) - (0 if span is None else span.amount)
        excess += max(0, amount) * (last - first)
    return excess


def with_gaps_held(capacity: Sequence[Capacity], held: Sequence[Held], start: int, end: int) -> tuple[Capacity, ...]:
    """The capacity, and where none is known but something is held, what was there nearest before (or after).

    A node that left, or a device that fell silent, still has what was not released yet; nobody else may have it, so it
    counts as unavailable.
    """
    if not capacity:
        return ()
    filled: list[Capacity] = []
    nearest = capacity[0]
    for first, last, span, in_force in _sweep(capacity, held, start, end):
        if span is not None:
            nearest = span
        elif in_force:
            filled.append(Capacity(first, last, nearest.amount, available=False))
    return tuple(sorted((*capacity, *filled), key=lambda one: one.start))


def value_at_list(
    capacity: Sequence[Capacity], held: Sequence[Held], start: int, end: int, book: PriceBook, sku: Sku
) -> Valued:
    """The same at the public list price in force at each microsecond.

    Raises:
        ConservationBroken: at some instant more is held than there is.
        PriceMissing: no public version prices the SKU.
    """
    by_state = dict.fromkeys(TimeState, Decimal(0))
    total = Decimal(0)
    changes = [change for change in book.change_points(None) if start < change < end]
    for first, last in pairwise((start, *changes, end)):
        price = book.price_at(sku, None, first)
        piece = conserve(capacity, held, first, last)
        for state, amount in piece.by_state.items():
            by_state[state] = EXACT.add(by_state[state], price.amount(amount, 1))
        total = EXACT.add(total, price.amount(piece.capacity, 1))
    return Valued(by_state, total)


def value_of_held(held: Iterable[Held], start: int, end: int, book: PriceBook, sku: Sku) -> Mapping[TimeState, Decimal]:
    """What was held over `[start, end)` at the public list price in force at each microsecond, by state.

    Raises:
        PriceMissing: no public version prices the SKU.
    """
    by_state = dict.fromkeys(TimeState, Decimal(0))
    changes = [change for change in book.change_points(None) if start < change < end]
    for one in held:
        first, last = max(one.start, start), min(one.end, end)
        points = [first, *(change for change in changes if first < change < last), last]
        for since, until in pairwise(points if first < last else ()):
            value = book.price_at(sku, None, since).amount(one.amount, until - since)
            by_state[one.state] = EXACT.add(by_state[one.state], value)
    return by_state


def bill_difference(statement: Statement, metered_list_value: Decimal) -> Decimal:
    """List value of the metered time plus the named lines, less the statement: zero to the last digit when it holds.

    Args:
        metered_list_value: list value of the tenant's active and releasing time in the period, found independently of
            the charges. The waiver line takes the releasing part off again.
    """
    named = exact_sum(line.amount for line in statement.lines if line.kind is not ChargeKind.USAGE)
    return EXACT.subtract(EXACT.add(metered_list_value, named), statement.total)


def _sweep(
    capacity: Sequence[Capacity], held: Iterable[Held], start: int, end: int
) -> Iterator[tuple[int, int, Capacity | None, list[Held]]]:
    """Stretches within which nothing changes: (start, end, the capacity, what is held)."""
    waiting = sorted((one for one in held if one.start < end and start < one.end), key=lambda one: -one.start)
    spans: Sequence[Capacity | Held] = [*capacity, *waiting]
    points = {start, end, *(one.start for one in spans), *(one.end for one in spans)}
    in_force: list[Held] = []
    for first, last in pairwise(sorted(point for point in points if start <= point <= end)):
        in_force = [one for one in in_force if one.end > first]
        while waiting and waiting[-1].start <= first:
            in_force.append(waiting.pop())
        span = next((one for one in capacity if one.start <= first < one.end), None)
        yield first, last, span, in_force
