"""Charges as people read them: the lines behind every figure, exact, with what explains them.

First the written ones in order of time, then adjustments, then those of what still runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from millpond_billing.domain.periods import Period
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.rating import Charge, RatedSegment, charges_of
from millpond_billing.domain.statements import Adjustment
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store import adjustments, segments
from millpond_billing.store.allocations import allocation_of, list_allocations, list_running_ids, timeline_of
from millpond_billing.store.prices import load_price_book
from millpond_billing.store.segments import WrittenRange
from millpond_billing.store.statements import find_period_row
from millpond_billing.usecases.metering import rate_running
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.bodies.bills import ChargeKind, ChargeView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, JobId, ProjectId, SegmentId, TenantId
from millpond_contracts.prices import SMALLEST_PER_UNIT, UNITS, Sku
from millpond_contracts.quantities import ExactDecimal, Money
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork

_NOWHERE = UUID(int=0)
RUNNING_BATCH = 100


@dataclass(frozen=True, slots=True)
class ChargeQuery:
    """Which charges: a tenant's of a period, as known at `now`, of one job, project, cause or SKU when named.

    `known_at` leaves out what was written later, for pages that are read over a long time.
    """

    tenant_id: TenantId
    period: Period
    now: datetime
    job_id: JobId | None = None
    project_id: ProjectId | None = None
    known_at: datetime | None = None
    kind: ChargeKind | None = None
    sku: str | None = None

    @property
    def until(self) -> datetime:
        """Up to when running work counts."""
        return min(self.now, moment_of(self.period.end))

    def takes(self, allocation: AllocationView) -> bool:
        """Whether the allocation is of the job and project asked for."""
        return self.job_id in (None, allocation.job_id) and self.project_id in (None, allocation.project_id)

    def lists(self, kind: ChargeKind, sku: Sku) -> bool:
        """Whether charges of the cause and SKU were asked for."""
        return self.kind in (None, kind) and self.sku in (None, str(sku))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of charges begins: the stage, the place in it, and how many charges of it were given."""

    stage: str = "w"
    at: int = 0
    key: UUID = _NOWHERE
    given: int = 0

    def __str__(self) -> str:
        return f"{self.stage}:{self.at}:{self.key.hex}:{self.given}"


def parse_place(text: str | None) -> Place:
    """The place of a cursor.

    Raises:
        ProblemError: 400 `kernel.cursor.invalid`.
    """
    if text is None:
        return Place()
    try:
        stage, at, key, given = text.split(":")
        place = Place(stage, int(at), UUID(hex=key), int(given))
        moment_of(place.at)
        if stage not in ("w", "a", "r") or place.given < 0:
            raise ValueError(f"expected a place in charges, found {text[:80]!r}")
    except (ValueError, OverflowError) as error:
        raise ProblemError(ErrorCode.CURSOR_INVALID, "The cursor belongs to another list.") from error
    return place


async def list_charges(
    unit: UnitOfWork, query: ChargeQuery, place: Place, limit: int, running: list[AllocationId] | None = None
) -> tuple[list[ChargeView], Place | None]:
    """A page of charges from a place on, and the place of the next page.

    Args:
        running: `list_unwritten_ids` before the first page, for pages that must fit together; else read anew.
    """
    if running is None:
        running = await list_unwritten_ids(unit, query)
    found: list[ChargeView] = []
    following: Place | None = place
    while following is not None and len(found) < limit:
        stage = {"w": _list_written, "a": _list_adjusted, "r": _list_running}[following.stage]
        views, following = await stage(unit, query, following, limit - len(found), running)
        found += views
    return found, following


async def list_unwritten_ids(unit: UnitOfWork, query: ChargeQuery) -> list[AllocationId]:
    """Allocations whose charges of the period are computed, not read: what runs, unless the period is closed."""
    kept = await find_period_row(unit, query.tenant_id, moment_of(query.period.start))
    if kept is not None and kept.is_closed:
        return []
    return await list_running_ids(unit, query.tenant_id, query.until)


async def _list_written(
    unit: UnitOfWork, query: ChargeQuery, place: Place, limit: int, running: list[AllocationId]
) -> tuple[list[ChargeView], Place | None]:
    written = WrittenRange(
        query.tenant_id,
        query.period.start,
        query.period.end,
        running,
        query.known_at,
        query.job_id,
        query.project_id,
        query.kind,
        query.sku,
    )
    after = (moment_of(place.at), place.key) if place.at else None
    rows = await segments.list_written_page(unit, written, after, limit + 1)
    views: list[ChargeView] = []
    for row in rows:
        start, skipped = row.rated.segment.start, place.given if row.segment_id == place.key else 0
        for given, charge in enumerate(charges_of(row.rated)):
            if given < skipped or not query.lists(charge.kind, row.rated.segment.sku):
                continue
            if len(views) == limit:
                return views, Place("w", start, row.segment_id, given)
            views.append(_view(row.rated, charge, row.job_name, row.segment_id))
    if len(rows) > limit:
        # Every charge of the last segment was given before, or it would have filled the page.
        last = rows[-1]
        return views, Place("w", last.rated.segment.start, last.segment_id, len(charges_of(last.rated)))
    return views, Place("a")


async def _list_adjusted(
    unit: UnitOfWork, query: ChargeQuery, place: Place, limit: int, running: list[AllocationId]
) -> tuple[list[ChargeView], Place | None]:
    rows = await adjustments.list_posted_page(
        unit, query.tenant_id, query.period.start, place.key if place.key.int else None, limit, query.known_at
    )
    views = []
    for row in rows:
        adjustment, allocation = adjustments.adjustment_of(row), allocation_of(row)
        if query.takes(allocation) and query.lists(ChargeKind.ADJUSTMENT, adjustment.key.sku):
            views.append(_adjustment_view(adjustment, allocation, row["currency"]))
    return views, replace(place, key=rows[-1]["id"]) if len(rows) == limit else Place("r")


async def _list_running(
    unit: UnitOfWork, query: ChargeQuery, place: Place, limit: int, running: list[AllocationId]
) -> tuple[list[ChargeView], Place | None]:
    # One allocation after the other, by id: whoever goes on later finds the place, whatever has happened meanwhile.
    left = [key for key in sorted(running) if key >= place.key]
    if not left:
        return [], None
    book = await load_price_book(unit)
    views: list[ChargeView] = []
    for start in range(0, len(left), RUNNING_BATCH):
        batch = left[start : start + RUNNING_BATCH]
        # Those released meanwhile too: they were left out of what is written.
        for allocation in await list_allocations(unit, batch):
            if len(views) >= limit:
                return views, Place("r", 0, allocation.allocation_id)
            skipped = place.given if allocation.allocation_id == place.key else 0
            lines = _running_lines(allocation, book, query)[skipped:] if query.takes(allocation) else []
            # What is frozen is read over a long time: an allocation is given whole, as it is known at one moment.
            room = len(lines) if query.known_at is not None else limit - len(views)
            views += lines[:room]
            if len(lines) > room:
                return views, Place("r", 0, allocation.allocation_id, skipped + room)
    return views, None


def _running_lines(allocation: AllocationView, book: PriceBook, query: ChargeQuery) -> list[ChargeView]:
    rated = rate_running(timeline_of(allocation), book, query.period, instant_of(query.until))
    charges = [(one, charge) for one in rated for charge in charges_of(one)]
    wanted = [(one, charge) for one, charge in charges if query.lists(charge.kind, one.segment.sku)]
    return [_view(one, charge, allocation.job_name, None) for one, charge in wanted]


def _view(rated: RatedSegment, charge: Charge, job_name: str | None, segment_id: SegmentId | None) -> ChargeView:
    segment = rated.segment
    per_unit = SMALLEST_PER_UNIT[segment.sku.resource]
    return ChargeView(
        segment_id=segment_id,
        allocation_id=segment.allocation_id,
        job_id=segment.parties.job_id,
        job_name=job_name,
        project_id=segment.parties.project_id,
        pool_id=segment.parties.pool_id,
        node_id=segment.parties.node_id,
        kind=charge.kind,
        sku=str(segment.sku),
        # Whole units divide exactly: a thousandth and a 1024th have finite decimals.
        quantity=ExactDecimal(ExactDecimal(segment.amount) / per_unit),
        unit=UNITS[segment.sku.resource],
        seconds=charge.seconds,
        per_hour=ExactDecimal(charge.price.per_hour),
        start_at=moment_of(segment.start),
        end_at=moment_of(segment.end),
        amount=Money(amount=ExactDecimal(charge.amount), currency=charge.price.currency),
        price_version_id=charge.price.version_id,
    )


def _adjustment_view(adjustment: Adjustment, allocation: AllocationView, currency: str) -> ChargeView:
    """An adjustment; its time is the period that it corrects."""
    return ChargeView(
        segment_id=None,
        allocation_id=adjustment.key.allocation_id,
        job_id=allocation.job_id,
        job_name=allocation.job_name,
        project_id=allocation.project_id,
        pool_id=allocation.pool_id,
        node_id=allocation.node_id,
        kind=ChargeKind.ADJUSTMENT,
        sku=str(adjustment.key.sku),
        quantity=None,
        unit=None,
        seconds=adjustment.seconds,
        per_hour=None,
        start_at=moment_of(adjustment.original_period.start),
        end_at=moment_of(adjustment.original_period.end),
        amount=Money(amount=ExactDecimal(adjustment.amount), currency=currency),
        price_version_id=None,
    )


def csv_header() -> list[str]:
    """The columns of an export, in order."""
    return [
        "start_at",
        "end_at",
        "kind",
        "sku",
        "quantity",
        "unit",
        "seconds",
        "per_hour",
        "amount",
        "currency",
        "job_id",
        "job_name",
        "project_id",
        "allocation_id",
        "pool_id",
        "node_id",
        "segment_id",
        "price_version_id",
    ]


def csv_rows(views: Sequence[ChargeView]) -> Iterator[list[str]]:
    """Charges as an export writes them; an absent value is empty."""
    for view in views:
        document = view.model_dump(mode="json")
        flat = {**document, "amount": document["amount"]["amount"], "currency": document["amount"]["currency"]}
        yield ["" if flat[column] is None else str(flat[column]) for column in csv_header()]
