"""Rating: segments times the prices in force, as exact charges that say why each is there.

A charge is never rounded. Per segment they add up to the tenant's price times whole seconds, or to nothing when waived:
usage (list value of the exact time) + round-up (to whole seconds) + price difference (tenant's price against the list)
- waiver.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from millpond_billing.domain.prices import Price, PriceBook
from millpond_billing.domain.segments import Segment, SegmentKind, cut_segments
from millpond_billing.domain.timeline import Timeline
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.prices import EXACT, MICROSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True)
class RatedSegment:
    """A segment with the public list price and the tenant's price; both hold for all of it."""

    segment: Segment
    list_price: Price
    price: Price


@dataclass(frozen=True, slots=True)
class Charge:
    """One exact amount of one cause. `seconds` count in whole seconds for usage, minimum and waiver, else zero."""

    kind: ChargeKind
    rated: RatedSegment
    seconds: int
    amount: Decimal

    @property
    def price(self) -> Price:
        """The price that explains the amount: the list's for usage, round-up and minimum, else the tenant's."""
        if self.kind in (ChargeKind.USAGE, ChargeKind.ROUND_UP, ChargeKind.MINIMUM):
            return self.rated.list_price
        return self.rated.price


def rate_timeline(
    timeline: Timeline, book: PriceBook, until: int, period_starts: Iterable[int] = ()
) -> tuple[RatedSegment, ...]:
    """The priced segments of an allocation up to `until`, with the minimum once it is released.

    A second belongs to the price in force, the amount held, and the period at its first instant: whole seconds
    telescope, so cutting at the exact change gives each second that begins before it to what was in force before.

    Args:
        until: what is known up to now.
        period_starts: boundaries of the tenant's billing periods; those outside the allocation do no harm.

    Raises:
        PriceMissing: no version prices a segment.
    """
    tenant = timeline.parties.tenant_id
    cuts = (*period_starts, *book.change_points(tenant))
    segments = cut_segments(timeline, until, cuts)
    rated = [
        RatedSegment(
            segment,
            list_price=book.price_at(segment.sku, None, segment.start),
            price=book.price_at(segment.sku, tenant, segment.start),
        )
        for segment in segments
    ]
    return (*rated, *_rate_minimum(timeline, book, until))


def charges_of(rated: RatedSegment) -> tuple[Charge, ...]:
    """The exact charges of a priced segment, by cause; those of no money and no seconds are left out, usage never."""
    # At a price of zero the seconds of a minimum or a waiver still count.
    return tuple(
        charge for charge in _charges(rated) if charge.amount or charge.seconds or charge.kind is ChargeKind.USAGE
    )


def _charges(rated: RatedSegment) -> Iterator[Charge]:
    segment, listed, price = rated.segment, rated.list_price, rated.price
    whole = segment.seconds * MICROSECONDS_PER_SECOND
    list_amount = listed.amount(segment.amount, whole)
    amount = price.amount(segment.amount, whole)
    if segment.kind is SegmentKind.MINIMUM:
        yield Charge(ChargeKind.MINIMUM, rated, segment.seconds, list_amount)
    else:
        usage = listed.amount(segment.amount, segment.microseconds)
        yield Charge(ChargeKind.USAGE, rated, segment.seconds, usage)
        yield Charge(ChargeKind.ROUND_UP, rated, 0, EXACT.subtract(list_amount, usage))
    yield Charge(ChargeKind.PRICE_DIFFERENCE, rated, 0, EXACT.subtract(amount, list_amount))
    if segment.kind is SegmentKind.WAIVED:
        yield Charge(ChargeKind.WAIVER, rated, -segment.seconds, EXACT.minus(amount))


def _rate_minimum(timeline: Timeline, book: PriceBook, until: int) -> Iterator[RatedSegment]:
    """What is missing to the minimum: once per allocation, at its release, at the price and holding of the bind."""
    released_at, tenant = timeline.released_at, timeline.parties.tenant_id
    if timeline.active_at is None or released_at is None or released_at > until or timeline.provider_fault:
        return
    seconds = timeline.seconds_until(released_at)
    _, holding = timeline.steps[0]
    for sku, amount in holding.amounts:
        price = book.price_at(sku, tenant, timeline.bound_at)
        missing = price.minimum_seconds - seconds
        if missing > 0:
            segment = Segment(
                kind=SegmentKind.MINIMUM,
                allocation_id=timeline.allocation_id,
                parties=timeline.parties,
                sku=sku,
                amount=amount,
                start=released_at,
                end=released_at,
                seconds=missing,
            )
            yield RatedSegment(segment, book.price_at(sku, None, timeline.bound_at), price)
