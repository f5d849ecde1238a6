"""From allocations to segments and charges: written at release and at the close of a period, computed until then."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millpond_billing.domain.periods import Calendar
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.rating import RatedSegment, rate_timeline
from millpond_billing.domain.timeline import Timeline, instant_of, moment_of
from millpond_billing.store import segments, tenants
from millpond_billing.store.allocations import list_open_allocations, save_allocation, timeline_of
from millpond_billing.store.prices import load_price_book
from millpond_contracts.bodies.jobs import AllocationView
from millpond_contracts.ids import SegmentId, TenantId
from millpond_kernel.uow import UnitOfWork


@dataclass(frozen=True, slots=True)
class MeteredSegment:
    """A rated segment, the allocation it belongs to, and its id once it is written."""

    rated: RatedSegment
    allocation: AllocationView
    segment_id: SegmentId | None


async def note_allocation(unit: UnitOfWork, allocation: AllocationView) -> None:
    """Keeps an allocation's newest state; a released one becomes segments and charges at once."""
    if await save_allocation(unit, allocation) and allocation.released_at is not None:
        await write_released(unit, [allocation])


async def write_released(unit: UnitOfWork, allocations: Sequence[AllocationView]) -> int:
    """Writes what released allocations owe; writing it again changes nothing. How many segments were new."""
    book = await load_price_book(unit)
    rated: list[RatedSegment] = []
    for allocation in allocations:
        timeline = timeline_of(allocation)
        if timeline.released_at is not None:
            rated += rate_whole(timeline, book, await calendar_of(unit, allocation.tenant_id), timeline.released_at)
    return await segments.insert_rated(unit, rated)


async def write_open(unit: UnitOfWork, tenant_id: TenantId, until: int) -> int:
    """Writes the slices of the tenant's running allocations up to the end of a period; how many were new."""
    book, calendar = await load_price_book(unit), await calendar_of(unit, tenant_id)
    rated: list[RatedSegment] = []
    for allocation in await list_open_allocations(unit, tenant_id):
        timeline = timeline_of(allocation)
        rated += rate_whole(timeline, book, calendar, until)
    return await segments.insert_rated(unit, rated)


def rate_whole(timeline: Timeline, book: PriceBook, calendar: Calendar, until: int) -> tuple[RatedSegment, ...]:
    """The priced segments of an allocation from activation to `until`, cut at the tenant's periods."""
    if timeline.active_at is None:
        return ()
    return rate_timeline(timeline, book, until, calendar.boundaries_between(timeline.active_at, until))


async def calendar_of(unit: UnitOfWork, tenant_id: TenantId) -> Calendar:
    """The tenant's calendar; UTC as long as quota has not told of the tenant."""
    tenant = await tenants.find_tenant(unit, tenant_id)
    return Calendar.of("UTC") if tenant is None else tenants.calendar_of(tenant)


async def metered_segments(
    unit: UnitOfWork, tenant_id: TenantId, start: int, end: int, now: int
) -> list[MeteredSegment]:
    """Segments of a tenant that start in `[start, end)`: the written ones, and those of running allocations so far."""
    written = [
        MeteredSegment(rated, AllocationView.model_validate(row["body"]), key)
        for key, rated, row in await segments.list_rated(unit, tenant_id, moment_of(start), moment_of(end))
    ]
    book, calendar = await load_price_book(unit), await calendar_of(unit, tenant_id)
    running = await list_open_allocations(unit, tenant_id)
    until = await segments.written_until(unit, [allocation.allocation_id for allocation in running])
    for allocation in running:
        known = until.get(allocation.allocation_id)
        rated = rate_whole(timeline_of(allocation), book, calendar, min(now, end))
        written += [
            MeteredSegment(one, allocation, None)
            for one in _not_written(rated, None if known is None else instant_of(known))
            if start <= one.segment.start < end
        ]
    return written


def _not_written(rated: Iterable[RatedSegment], until: int | None) -> list[RatedSegment]:
    return [one for one in rated if until is None or one.segment.start >= until]
