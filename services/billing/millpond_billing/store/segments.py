"""Rows of segments with their exact charges: written once, in one statement each batch, never changed."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg

from millpond_billing.domain.facts import Parties
from millpond_billing.domain.prices import Price
from millpond_billing.domain.rating import RatedSegment, charges_of
from millpond_billing.domain.segments import Segment, SegmentKind
from millpond_billing.domain.statements import StatementLine
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import (
    AllocationId,
    JobId,
    NodeId,
    PoolId,
    PriceVersionId,
    ProjectId,
    SegmentId,
    TaskId,
    TenantId,
    VirtualPoolId,
)
from millpond_contracts.prices import AMOUNT_SCALE, PER_HOUR_SCALE, UNIT_PRICE_SCALE, Sku
from millpond_kernel.uow import UnitOfWork

# The charges that a segment's row holds, in the order in which they are listed.
CAUSES = (
    ChargeKind.USAGE,
    ChargeKind.ROUND_UP,
    ChargeKind.MINIMUM,
    ChargeKind.PRICE_DIFFERENCE,
    ChargeKind.WAIVER,
)

BATCH = 1000
_FOREVER = datetime(9999, 1, 1, tzinfo=UTC)

_Column = Callable[[RatedSegment], Any]


def exact(value: Decimal, scale: int) -> Decimal:
    """The value, which fits a column of `scale` decimals; PostgreSQL would round it without a word.

    Raises:
        ValueError: it has more decimals.
    """
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -scale:
        raise ValueError(f"expected at most {scale} decimals, found {value}")
    return value


# Column -> (type, its value): the one place that says how a segment is written, beside its charges.
_COLUMNS: dict[str, tuple[str, _Column]] = {
    "tenant_id": ("uuid", lambda one: one.segment.parties.tenant_id),
    "project_id": ("uuid", lambda one: one.segment.parties.project_id),
    "job_id": ("uuid", lambda one: one.segment.parties.job_id),
    "task_id": ("uuid", lambda one: one.segment.parties.task_id),
    "allocation_id": ("uuid", lambda one: one.segment.allocation_id),
    "virtual_pool_id": ("uuid", lambda one: one.segment.parties.virtual_pool_id),
    "pool_id": ("uuid", lambda one: one.segment.parties.pool_id),
    "node_id": ("uuid", lambda one: one.segment.parties.node_id),
    "kind": ("text", lambda one: one.segment.kind.value),
    "sku": ("text", lambda one: str(one.segment.sku)),
    "amount": ("bigint", lambda one: one.segment.amount),
    "start_at": ("timestamptz", lambda one: moment_of(one.segment.start)),
    "end_at": ("timestamptz", lambda one: moment_of(one.segment.end)),
    "seconds": ("bigint", lambda one: one.segment.seconds),
    "list_version_id": ("uuid", lambda one: one.list_price.version_id),
    "list_unit_price": ("numeric", lambda one: exact(one.list_price.unit_price, UNIT_PRICE_SCALE)),
    "list_per_hour": ("numeric", lambda one: exact(one.list_price.per_hour, PER_HOUR_SCALE)),
    "price_version_id": ("uuid", lambda one: one.price.version_id),
    "unit_price": ("numeric", lambda one: exact(one.price.unit_price, UNIT_PRICE_SCALE)),
    "per_hour": ("numeric", lambda one: exact(one.price.per_hour, PER_HOUR_SCALE)),
    "currency": ("text", lambda one: one.price.currency),
}
_TYPES: dict[str, str] = {"id": "uuid", **{column: kind for column, (kind, _) in _COLUMNS.items()}}
_TYPES |= dict.fromkeys(CAUSES, "numeric")
_INSERT = (
    f"INSERT INTO segment ({', '.join(_TYPES)}) SELECT * FROM unnest("
    + ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_TYPES.values(), 1))
    + ")"
)
_IN_PERIOD = (
    " WHERE tenant_id = $1 AND start_at >= $2 AND start_at < $3 AND allocation_id <> ALL($4::uuid[]) AND rated_at <= $5"
)
_HAS_CHARGE = (
    " AND ($12::text IS NULL OR CASE $12"
    + "".join(f" WHEN '{kind.value}' THEN {kind.value}" for kind in CAUSES)
    + " END IS NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """A segment as it is written, with the name of its job."""

    segment_id: SegmentId
    rated: RatedSegment
    job_name: str | None


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Which written segments are meant: a tenant's that start in `[start, end)`, but none of the allocations left out.

    `known_at` leaves out what was written later; the others narrow it further, `kind` to those with such a charge.
    """

    tenant_id: TenantId
    start: int
    end: int
    without: Sequence[AllocationId] = ()
    known_at: datetime | None = None
    job_id: JobId | None = None
    project_id: ProjectId | None = None
    kind: ChargeKind | None = None
    sku: str | None = None

    def arguments(self) -> tuple[object, ...]:
        """The first five parameters of every statement over a range."""
        known_at = self.known_at or _FOREVER
        return (self.tenant_id, moment_of(self.start), moment_of(self.end), list(self.without), known_at)


async def insert_rated(unit: UnitOfWork, rated: Sequence[RatedSegment]) -> None:
    """Writes segments with their charges. One that is there already, or overlaps, is refused by the constraints."""
    if rated:
        values = [[value(one) for one in rated] for _, value in _COLUMNS.values()]
        charges = [{charge.kind: exact(charge.amount, AMOUNT_SCALE) for charge in charges_of(one)} for one in rated]
        amounts = [[found.get(kind) for found in charges] for kind in CAUSES]
        await unit.execute(_INSERT, [SegmentId.new() for _ in rated], *values, *amounts)


async def find_written(unit: UnitOfWork, allocation_ids: Sequence[AllocationId]) -> list[AllocationId]:
    """Those of the allocations of which something was written before, as segments or adjustments."""
    rows = await unit.fetch(
        "SELECT a.id FROM unnest($1::uuid[]) AS a(id) WHERE EXISTS (SELECT 1 FROM segment WHERE allocation_id = a.id)"
        " OR EXISTS (SELECT 1 FROM adjustment WHERE allocation_id = a.id)",
        list(allocation_ids),
    )
    return [AllocationId.of(row["id"]) for row in rows]


async def list_of_allocations(unit: UnitOfWork, allocation_ids: Sequence[AllocationId]) -> list[RatedSegment]:
    """Everything written of these allocations."""
    rows = await unit.fetch("SELECT * FROM segment WHERE allocation_id = ANY($1::uuid[])", list(allocation_ids))
    return [_rated(row) for row in rows]


async def list_written(unit: UnitOfWork, written: WrittenRange) -> AsyncIterator[RatedSegment]:
    """Every written segment of the range, always in the same order, a batch in memory at a time."""
    await unit.execute(
        f"DECLARE written_segments CURSOR FOR SELECT * FROM segment{_IN_PERIOD}"
        ' ORDER BY start_at, allocation_id, sku COLLATE "C", kind COLLATE "C"',
        *written.arguments(),
    )
    while rows := await unit.fetch(f"FETCH {BATCH} FROM written_segments"):
        for row in rows:
            yield _rated(row)
    await unit.execute("CLOSE written_segments")


async def list_written_page(
    unit: UnitOfWork, written: WrittenRange, after: tuple[datetime, UUID] | None, limit: int
) -> list[WrittenSegment]:
    """Written segments of the range from a place on (which is included), in order of time."""
    at, key = after or (moment_of(written.start), UUID(int=0))
    rows = await unit.fetch(
        f"SELECT s.*, v.body->>'job_name' AS job_name FROM (SELECT * FROM segment{_IN_PERIOD}"
        " AND (start_at, id) >= ($6, $7) AND ($9::uuid IS NULL OR job_id = $9)"
        " AND ($10::uuid IS NULL OR project_id = $10) AND ($11::text IS NULL OR sku = $11)"
        f"{_HAS_CHARGE} ORDER BY start_at, id LIMIT $8) s"
        " LEFT JOIN allocation_view v USING (allocation_id) ORDER BY s.start_at, s.id",
        *written.arguments(),
        at,
        key,
        limit,
        written.job_id,
        written.project_id,
        written.sku,
        written.kind,
    )
    return [WrittenSegment(SegmentId.of(row["id"]), _rated(row), row["job_name"]) for row in rows]


async def sum_written(unit: UnitOfWork, written: WrittenRange) -> tuple[list[StatementLine], int]:
    """The exact sums by cause and SKU of the range, and how many charges they are."""
    sums = ", ".join(f"sum({kind}) AS {kind}, count({kind}) AS {kind}_count" for kind in CAUSES)
    rows = await unit.fetch(
        f"SELECT sku, {sums}, coalesce(sum(seconds) FILTER (WHERE usage IS NOT NULL), 0)::bigint AS usage_seconds,"
        " coalesce(sum(seconds) FILTER (WHERE minimum IS NOT NULL), 0)::bigint AS minimum_seconds,"
        " -coalesce(sum(seconds) FILTER (WHERE waiver IS NOT NULL), 0)::bigint AS waiver_seconds"
        f" FROM segment{_IN_PERIOD} GROUP BY sku ORDER BY sku",
        *written.arguments(),
    )
    lines, count = [], 0
    for row in rows:
        for kind in CAUSES:
            count += int(row[f"{kind}_count"])
            if row[kind] is not None:
                lines.append(StatementLine(kind, Sku.parse(row["sku"]), int(row.get(f"{kind}_seconds", 0)), row[kind]))
    return lines, count


def _rated(row: asyncpg.Record) -> RatedSegment:
    segment = Segment(
        kind=SegmentKind(row["kind"]),
        allocation_id=AllocationId.of(row["allocation_id"]),
        parties=Parties(
            tenant_id=TenantId.of(row["tenant_id"]),
            project_id=None if row["project_id"] is None else ProjectId.of(row["project_id"]),
            job_id=JobId.of(row["job_id"]),
            task_id=TaskId.of(row["task_id"]),
            virtual_pool_id=VirtualPoolId.of(row["virtual_pool_id"]),
            pool_id=PoolId.of(row["pool_id"]),
            node_id=NodeId.of(row["node_id"]),
        ),
        sku=Sku.parse(row["sku"]),
        amount=row["amount"],
        start=instant_of(row["start_at"]),
        end=instant_of(row["end_at"]),
        seconds=row["seconds"],
    )
    # Minimum seconds are a matter of rating; what is written was rated already.
    return RatedSegment(
        segment,
        list_price=Price(
            PriceVersionId.of(row["list_version_id"]), row["currency"], row["list_unit_price"], row["list_per_hour"], 0
        ),
        price=Price(PriceVersionId.of(row["price_version_id"]), row["currency"], row["unit_price"], row["per_hour"], 0),
    )
