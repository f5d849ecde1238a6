"""From allocations to segments: written at release and at the close of a period, computed until then.

Facts may come late. What they change of a period that is rated or closed becomes an adjustment, posted in the first
statement that is not closed; a segment never changes, and nothing is dropped without a word.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millpond_billing.domain.periods import Period
from millpond_billing.domain.prices import PriceBook, PriceMissing
from millpond_billing.domain.rating import RatedSegment, charges_of, rate_timeline
from millpond_billing.domain.statements import Adjustment, booked_sums, rerating_adjustments
from millpond_billing.domain.timeline import Timeline
from millpond_billing.store import adjustments, anomalies, segments
from millpond_billing.store import allocations as rows
from millpond_billing.store.locks import lock_for_rating
from millpond_billing.store.prices import book_currency, load_price_book
from millpond_billing.store.tenants import find_tenants
from millpond_billing.usecases.periods import TenantPeriods, keep_periods
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.ids import AllocationId, TenantId
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork

LATE = "a fact came after the period was rated"
WAITING_BATCH = 500


@dataclass(slots=True)
class _Booking:
    """What a pass of rating is about to write."""

    currency: str
    segments: list[RatedSegment] = field(default_factory=list)
    adjustments: dict[TenantId, list[Adjustment]] = field(default_factory=lambda: defaultdict(list))
    unrated: list[tuple[AllocationId, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written of allocations before."""

    segments: Mapping[AllocationId, list[RatedSegment]]
    adjustments: Mapping[AllocationId, list[Adjustment]]


async def take_allocations(unit: UnitOfWork, allocations: Sequence[AllocationView]) -> None:
    """Keeps the newest state of allocations; the released ones become segments at once."""
    news = await rows.save_allocations(unit, allocations)
    released = [one for one in news if one.released_at is not None]
    if released:
        await rate(unit, [rows.timeline_of(one) for one in released])


async def rate_waiting(unit: UnitOfWork) -> int:
    """Rates what was released before its tenant or a price was known; how many are rated now."""
    waiting = await rows.lock_unrated(unit, WAITING_BATCH)
    if not waiting:
        return 0
    still = await rate(unit, [rows.timeline_of(one) for one in waiting])
    done = [one.allocation_id for one in waiting if one.allocation_id not in still]
    await rows.clear_unrated(unit, done)
    return len(done)


async def rate(unit: UnitOfWork, timelines: Sequence[Timeline], until: int | None = None) -> set[AllocationId]:
    """Writes what these allocations owe up to their release, or up to `until`; those that cannot be rated yet."""
    active = [one for one in timelines if one.active_at is not None]
    if not active:
        return set()
    await lock_for_rating(unit, {one.parties.tenant_id for one in active})
    book = await load_price_book(unit)
    written = await _written_of(unit, active)
    periods = await _periods_of(unit, active, written, until)
    booking = _Booking(book_currency(book))
    for timeline in active:
        _book(booking, timeline, book, periods.get(timeline.parties.tenant_id), written, until)
    await _write(unit, booking, periods, active)
    if until is None:
        # What runs is tried again at the next close; only what ended has to be remembered.
        await rows.mark_unrated(unit, booking.unrated)
    return {key for key, _ in booking.unrated}


def rate_running(timeline: Timeline, book: PriceBook, period: Period, until: int) -> list[RatedSegment]:
    """The priced segments of a running allocation within a period, up to `until`; nothing is written."""
    rated = rate_timeline(timeline, book, min(until, period.end), (period.start,))
    return [one for one in rated if one.segment.start in period]


async def _written_of(unit: UnitOfWork, timelines: Sequence[Timeline]) -> _Written:
    before: dict[AllocationId, list[RatedSegment]] = defaultdict(list)
    adjusted: dict[AllocationId, list[Adjustment]] = defaultdict(list)
    # Mostly none: an allocation is written once, at its release.
    told = await segments.find_written(unit, [timeline.allocation_id for timeline in timelines])
    if told:
        for rated in await segments.list_of_allocations(unit, told):
            before[rated.segment.allocation_id].append(rated)
        for adjustment in await adjustments.list_of_allocations(unit, told):
            adjusted[adjustment.key.allocation_id].append(adjustment)
    return _Written(before, adjusted)


async def _periods_of(
    unit: UnitOfWork,
    timelines: Sequence[Timeline],
    written: _Written,
    until: int | None,
) -> dict[TenantId, TenantPeriods]:
    """The periods of all that is or was rated of these allocations, by tenant."""
    spans: dict[TenantId, tuple[int, int]] = {}
    for timeline in timelines:
        start, end = _span(timeline, until)
        start = min([start, *(one.segment.start for one in written.segments.get(timeline.allocation_id, ()))])
        known = spans.get(timeline.parties.tenant_id, (start, end))
        spans[timeline.parties.tenant_id] = (min(start, known[0]), max(end, known[1]))
    tenants = await find_tenants(unit, spans)
    return await keep_periods(unit, {key: (tenant, *spans[key]) for key, tenant in tenants.items()})


def _span(timeline: Timeline, until: int | None) -> tuple[int, int]:
    start = timeline.active_at
    end = until if until is not None else timeline.released_at
    assert start is not None, "only what was active is rated"
    assert end is not None, "what runs is rated up to an instant"
    return start, end


def _book(
    booking: _Booking,
    timeline: Timeline,
    book: PriceBook,
    periods: TenantPeriods | None,
    written: _Written,
    until: int | None,
) -> None:
    """Adds what one allocation owes: new segments, and the difference where a period was rated or closed before."""
    if periods is None:
        booking.unrated.append((timeline.allocation_id, f"tenant {timeline.parties.tenant_id} is not known yet"))
        return
    try:
        rated = rate_timeline(timeline, book, _span(timeline, until)[1], periods.starts)
    except PriceMissing as error:
        booking.unrated.append((timeline.allocation_id, str(error)))
        return
    before = _by_period(written.segments.get(timeline.allocation_id, ()), periods)
    now = _by_period(rated, periods)
    earlier = written.adjustments.get(timeline.allocation_id, [])
    told = before.keys() | {one.original_period for one in earlier}
    for period in sorted(told | now.keys(), key=lambda one: one.start):
        if until is not None and period.start >= until:
            continue
        if period in told or period.start < periods.closed_until:
            booking.adjustments[timeline.parties.tenant_id] += _differences(period, before, now, earlier)
        else:
            booking.segments += now[period]


def _by_period(rated: Iterable[RatedSegment], periods: TenantPeriods) -> dict[Period, list[RatedSegment]]:
    found: dict[Period, list[RatedSegment]] = defaultdict(list)
    for one in rated:
        found[periods.at(one.segment.start)].append(one)
    return found


def _differences(
    period: Period,
    before: Mapping[Period, list[RatedSegment]],
    now: Mapping[Period, list[RatedSegment]],
    earlier: Sequence[Adjustment],
) -> tuple[Adjustment, ...]:
    booked = [charge for one in before.get(period, ()) for charge in charges_of(one)]
    rated = [charge for one in now.get(period, ()) for charge in charges_of(one)]
    return rerating_adjustments(period, booked_sums(booked), rated, earlier, LATE)


async def _write(
    unit: UnitOfWork, booking: _Booking, periods: Mapping[TenantId, TenantPeriods], timelines: Sequence[Timeline]
) -> None:
    await segments.insert_rated(unit, booking.segments)
    for tenant_id, found in booking.adjustments.items():
        if found:
            period = periods[tenant_id].first_open()
            await adjustments.insert_adjustments(unit, tenant_id, period, booking.currency, found)
            _alarm("late_facts", tenant=str(tenant_id), adjustments=len(found))
    for key, reason in booking.unrated:
        _alarm("unrated", allocation=str(key), reason=reason)
    odd = [(timeline.allocation_id, anomaly) for timeline in timelines for anomaly in timeline.anomalies]
    if odd and await anomalies.note_anomalies(unit, odd):
        _alarm("metering_anomaly", found=[f"{key}: {anomaly.kind}" for key, anomaly in odd][:20])


def _alarm(kind: str, **details: object) -> None:
    log.warning(kind, service="billing", **details)
    ALARMS.labels("billing", kind).inc()
