"""What a fleet cost at the public list price, and where it went: by pool and by how the operator pays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise

from millpond_billing.domain.conservation import (
    Capacity,
    Conservation,
    Held,
    TimeState,
    Valued,
    conserve,
    overheld,
    value_at_list,
    with_gaps_held,
)
from millpond_billing.domain.prices import PriceBook
from millpond_contracts.bodies.nodes import Market
from millpond_contracts.ids import PoolId
from millpond_contracts.prices import EXACT, Sku

_ORDER = {Market.COMMITTED: 0, Market.ON_DEMAND: 1}


@dataclass(frozen=True, slots=True)
class Placed:
    """Capacity, in which pool, and how it was paid for."""

    capacity: Capacity
    pool_id: PoolId
    market: Market


@dataclass(slots=True)
class Costs:
    """Sums of values by state; they add up to `provided`."""

    by_state: dict[TimeState, Decimal] = field(default_factory=lambda: dict.fromkeys(TimeState, Decimal(0)))
    provided: Decimal = Decimal(0)

    def add(self, value: Valued) -> None:
        """Adds what a piece of the fleet cost."""
        self.provided = EXACT.add(self.provided, value.capacity)
        for state, amount in value.by_state.items():
            self.by_state[state] = EXACT.add(self.by_state[state], amount)

    @property
    def held_unbilled(self) -> Decimal:
        """What was held and not billed."""
        return EXACT.add(self.by_state[TimeState.STARTING], self.by_state[TimeState.RELEASING])

    @property
    def unused(self) -> Decimal:
        """What nobody held: idle, or out of work."""
        return EXACT.add(self.by_state[TimeState.IDLE], self.by_state[TimeState.UNAVAILABLE])


@dataclass(slots=True)
class Fleet:
    """A fleet over `[start, end)`, added up item by item."""

    start: int
    end: int
    book: PriceBook
    total: Costs = field(default_factory=Costs)
    fixed: Decimal = Decimal(0)
    shares: dict[tuple[PoolId, Market], Costs] = field(default_factory=dict)
    # SKU -> amount x microseconds that were provided, and active.
    amounts: dict[Sku, tuple[int, int]] = field(default_factory=dict)

    def add(self, sku: Sku, spans: Sequence[Placed], held: Sequence[Held]) -> bool:
        """Adds an item of a node; False, and nothing is added, where more was held than there was.

        Args:
            spans: disjoint, in order of time, within the interval; at least one.
            held: all that was held of the item.

        Raises:
            PriceMissing: no public version prices the SKU.
        """
        capacity = with_gaps_held([span.capacity for span in spans], held, self.start, self.end)
        if overheld(capacity, held, self.start, self.end):
            return False
        for start, end, placed in _stretches(spans, self.start, self.end):
            value = value_at_list(capacity, held, start, end, self.book, sku)
            self.total.add(value)
            self.shares.setdefault((placed.pool_id, placed.market), Costs()).add(value)
            self._count(sku, conserve(capacity, held, start, end))
        most = max(span.capacity.amount for span in spans)
        always = (Capacity(self.start, self.end, most, available=True),)
        whole = value_at_list(always, (), self.start, self.end, self.book, sku)
        self.fixed = EXACT.add(self.fixed, whole.capacity)
        return True

    def _count(self, sku: Sku, found: Conservation) -> None:
        provided, used = self.amounts.get(sku, (0, 0))
        self.amounts[sku] = (provided + found.capacity, used + found.by_state[TimeState.ACTIVE])

    def ordered_shares(self) -> Mapping[tuple[PoolId, Market], Costs]:
        """The shares by pool, committed before on demand."""
        return dict(sorted(self.shares.items(), key=lambda item: (item[0][0].int, _ORDER[item[0][1]])))

    @property
    def unused_commitment(self) -> Decimal:
        """What was paid for on committed nodes and held by nobody."""
        total = Decimal(0)
        for (_, market), costs in self.shares.items():
            if market is Market.COMMITTED:
                total = EXACT.add(total, costs.unused)
        return total


def _stretches(spans: Sequence[Placed], start: int, end: int) -> Iterator[tuple[int, int, Placed]]:
    """`[start, end)` divided where pool or market change; before the first span and in gaps what was before holds."""
    first, points = spans[0], [start]
    places = [first]
    for span in spans[1:]:
        if (span.pool_id, span.market) != (places[-1].pool_id, places[-1].market):
            points.append(span.capacity.start)
            places.append(span)
    for (since, until), placed in zip(pairwise((*points, end)), places, strict=True):
        yield since, until, placed
