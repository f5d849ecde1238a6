"""Charges summed by tenant, project, job, pool, node, flavor, label, and hour, day or month, over any interval."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

from millpond_billing.domain.buckets import Bucket, TimeUnit, TooManyBuckets, divide
from millpond_billing.domain.rating import rate_timeline
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store import adjustments, charge_sums
from millpond_billing.store.allocations import allocation_of, list_all_running, timeline_of
from millpond_billing.store.charge_sums import EVERY_ZONE, Beside, ChargeFilter, Given, GroupPage, GroupRow, SumRange
from millpond_billing.store.prices import book_currency, load_price_book
from millpond_billing.store.statements import list_closed_until
from millpond_billing.store.tenants import list_zones
from millpond_contracts.bodies.bills import ChargeGroup, ChargeSums
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, ProjectId, TenantId
from millpond_contracts.quantities import ExactDecimal, Money
from millpond_kernel.pagination import encode_cursor
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork

MOST_DIMENSIONS = 8
_ALL = 2**62


@dataclass(frozen=True, slots=True)
class SumQuery:
    """What is summed: `[start, end)` as known at `as_of`, by these dimensions.

    `zone` = where hours, days and months are counted; null = in each tenant's own.
    """

    wanted: ChargeFilter
    start: datetime
    end: datetime
    as_of: datetime
    zone: str | None
    group_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SumPlace:
    """Where a page begins: after a key, as of the instant and up to the end that the first page had."""

    as_of: datetime
    end: datetime
    after: tuple[str, ...]

    def __str__(self) -> str:
        return json.dumps(
            [instant_of(self.as_of), instant_of(self.end), *self.after], separators=(",", ":"), ensure_ascii=False
        )


def parse_sum_place(text: str | None, dimensions: int) -> SumPlace | None:
    """The place of a cursor; None on the first page.

    Raises:
        ProblemError: 400 `kernel.cursor.invalid`.
    """
    if text is None:
        return None
    try:
        as_of, end, *after = json.loads(text)
        if len(after) != dimensions or not all(isinstance(part, str) for part in after):
            raise ValueError(f"expected {dimensions} parts of a key")
        return SumPlace(moment_of(as_of), moment_of(end), tuple(after))
    except (ValueError, TypeError, OverflowError) as error:
        raise ProblemError(ErrorCode.CURSOR_INVALID, "The cursor belongs to another list.") from error


def check_dimensions(group_by: Sequence[str]) -> TimeUnit | None:
    """The clock's unit among the dimensions, if there is one.

    Raises:
        ProblemError: 422: a dimension twice, two units of time, or more than eight.
    """
    units = [TimeUnit(one) for one in group_by if one in tuple(TimeUnit)]
    if len(set(group_by)) != len(group_by) or len(units) > 1 or len(group_by) > MOST_DIMENSIONS:
        raise ProblemError(
            ErrorCode.BODY_INVALID,
            f"group_by takes each dimension once, one of hour, day and month, and {MOST_DIMENSIONS} in all.",
        )
    return units[0] if units else None


async def group_charges(unit: UnitOfWork, query: SumQuery) -> list[GroupRow]:
    """All groups at once; for dimensions that have few, or that are gone through anyway."""
    when = SumRange(query.start, query.end, query.zone, await _buckets(unit, query, check_dimensions(query.group_by)))
    page = GroupPage(query.group_by, None, _ALL)
    rows, _ = await charge_sums.sum_charges(unit, query.wanted, when, await _beside(unit, query), page)
    return rows


async def sum_charges(unit: UnitOfWork, query: SumQuery, place: SumPlace | None, limit: int) -> ChargeSums:
    """A page of groups, in the order of their keys.

    Raises:
        ProblemError: 422: dimensions that do not go together, or too many hours.
    """
    time_unit = check_dimensions(query.group_by)
    when = SumRange(query.start, query.end, query.zone, await _buckets(unit, query, time_unit))
    page = GroupPage(query.group_by, None if place is None else place.after, limit + 1)
    rows, total = await charge_sums.sum_charges(unit, query.wanted, when, await _beside(unit, query), page)
    currency = book_currency(await load_price_book(unit))
    shown = rows[:limit]
    following = None
    if len(rows) > limit:
        following = encode_cursor(str(SumPlace(query.as_of, query.end, shown[-1].key)))
    return ChargeSums(
        items=[_group(query.group_by, row, currency) for row in shown],
        next_cursor=following,
        start_at=query.start,
        end_at=query.end,
        as_of=query.as_of,
        group_by=list(query.group_by),
        total=Money(amount=ExactDecimal(total), currency=currency),
    )


async def _buckets(unit: UnitOfWork, query: SumQuery, time_unit: TimeUnit | None) -> Mapping[str, Sequence[Bucket]]:
    start, end = instant_of(query.start), instant_of(query.end)
    if time_unit is None:
        return {EVERY_ZONE: divide(None, ZoneInfo("UTC"), start, end)}
    zones = [query.zone] if query.zone is not None else await list_zones(unit)
    try:
        return {zone: divide(time_unit, ZoneInfo(zone), start, end) for zone in zones}
    except TooManyBuckets as error:
        raise ProblemError(ErrorCode.BODY_INVALID, f"Not summed: {error}; ask for a shorter interval.") from error


async def _beside(unit: UnitOfWork, query: SumQuery) -> Beside:
    """What is not read from segments: of what runs what is not on a closed statement, and adjustments."""
    until = min(query.as_of, query.end)
    book = await load_price_book(unit)
    running = await list_all_running(unit, query.wanted.tenant_id, until)
    closed_until = await list_closed_until(unit, {one.tenant_id for one in running})
    lines: list[Given] = []
    instead: dict[AllocationId, datetime] = {}
    for allocation in running:
        # A closed period has its slice; what it lacks becomes an adjustment at the release.
        since = instead[allocation.allocation_id] = closed_until.get(allocation.tenant_id, allocation.bound_at)
        rated = rate_timeline(timeline_of(allocation), book, instant_of(until), (instant_of(since),))
        lines += [Given.segment(one) for one in rated if one.segment.start >= instant_of(since)]
    for row in await adjustments.list_posted_between(unit, query.wanted.tenant_id, query.start, query.end):
        lines.append(Given.adjustment(adjustments.adjustment_of(row), allocation_of(row), row["period_start"]))
    return Beside(lines, instead)


def _group(group_by: Sequence[str], row: GroupRow, currency: str) -> ChargeGroup:
    values = {dimension: part[1:] if part else None for dimension, part in zip(group_by, row.key, strict=True)}

    def money(amount: Decimal) -> Money:
        return Money(amount=ExactDecimal(amount), currency=currency)

    def key(dimension: str) -> UUID | None:
        text = values.get(dimension)
        return None if text is None else UUID(text)

    tenant, project, job, pool, node = (key(one) for one in ("tenant", "project", "job", "pool", "node"))
    begins = next((values[one.value] for one in TimeUnit if one.value in values), None)
    return ChargeGroup(
        tenant_id=None if tenant is None else TenantId.of(tenant),
        project_id=None if project is None else ProjectId.of(project),
        job_id=None if job is None else JobId.of(job),
        job_name=row.job_name if "job" in values else None,
        pool_id=None if pool is None else PoolId.of(pool),
        node_id=None if node is None else NodeId.of(node),
        resource=values.get("resource"),
        flavor=values.get("flavor"),
        labels={
            dimension.removeprefix("label:"): value
            for dimension, value in values.items()
            if dimension.startswith("label:")
        },
        start_at=None if begins is None else moment_of(int(begins)),
        seconds=row.seconds,
        subtotals={kind: money(amount) for kind, amount in row.by_kind.items() if amount},
        amount=money(row.amount),
    )
