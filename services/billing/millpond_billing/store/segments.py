"""Rows of segments and charges: written once, in one statement each, never changed."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_billing.domain.prices import Price
from millpond_billing.domain.rating import RatedSegment, charges_of
from millpond_billing.domain.segments import Segment, SegmentKind
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store.allocations import allocation_of, timeline_of
from millpond_contracts.ids import PriceVersionId, SegmentId, TenantId, TypedId, uuid7_int
from millpond_contracts.prices import Sku
from millpond_kernel.uow import UnitOfWork

_INSERT_SEGMENTS = """
INSERT INTO segment (id, tenant_id, allocation_id, kind, sku, amount, start_at, end_at, seconds,
    list_version_id, list_unit_price, price_version_id, unit_price, per_hour, currency)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::bigint[], $7::timestamptz[],
    $8::timestamptz[], $9::bigint[], $10::uuid[], $11::numeric[], $12::uuid[], $13::numeric[], $14::numeric[],
    $15::text[])
ON CONFLICT ON CONSTRAINT segment_once DO NOTHING
RETURNING id
"""

_INSERT_CHARGES = """
INSERT INTO charge (id, tenant_id, segment_id, allocation_id, job_id, project_id, pool_id, node_id, kind, seconds,
    amount, start_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::uuid[], $8::uuid[],
    $9::text[], $10::bigint[], $11::numeric[], $12::timestamptz[])
"""

_ROWS = """
SELECT s.*, v.body, v.generation FROM segment s JOIN allocation_view v USING (allocation_id)
WHERE s.tenant_id = $1 AND s.start_at >= $2 AND s.start_at < $3 ORDER BY s.start_at, s.id
"""


async def insert_rated(unit: UnitOfWork, rated: Sequence[RatedSegment]) -> int:
    """Writes segments and their charges; those that are there already stay as they are. How many segments were new."""
    if not rated:
        return 0
    ids = [SegmentId.new() for _ in rated]
    segments = [one.segment for one in rated]
    inserted = await unit.fetch(
        _INSERT_SEGMENTS,
        ids,
        [segment.parties.tenant_id for segment in segments],
        [segment.allocation_id for segment in segments],
        [segment.kind.value for segment in segments],
        [str(segment.sku) for segment in segments],
        [segment.amount for segment in segments],
        [moment_of(segment.start) for segment in segments],
        [moment_of(segment.end) for segment in segments],
        [segment.seconds for segment in segments],
        [one.list_price.version_id for one in rated],
        [one.list_price.unit_price for one in rated],
        [one.price.version_id for one in rated],
        [one.price.unit_price for one in rated],
        [one.price.per_hour for one in rated],
        [one.price.currency for one in rated],
    )
    new = {row["id"] for row in inserted}
    charges = [(key, charge) for key, one in zip(ids, rated, strict=True) if key in new for charge in charges_of(one)]
    parties = [charge.rated.segment.parties for _, charge in charges]
    await unit.execute(
        _INSERT_CHARGES,
        [TypedId(int=uuid7_int()) for _ in charges],
        [party.tenant_id for party in parties],
        [key for key, _ in charges],
        [charge.rated.segment.allocation_id for _, charge in charges],
        [party.job_id for party in parties],
        [party.project_id for party in parties],
        [party.pool_id for party in parties],
        [party.node_id for party in parties],
        [charge.kind.value for _, charge in charges],
        [charge.seconds for _, charge in charges],
        [charge.amount for _, charge in charges],
        [moment_of(charge.rated.segment.start) for _, charge in charges],
    )
    return len(new)


async def list_rated(
    unit: UnitOfWork, tenant_id: TenantId, start_at: datetime, end_at: datetime
) -> list[tuple[SegmentId, RatedSegment, asyncpg.Record]]:
    """Written segments of a tenant that start in a period, as they were rated."""
    rows = await unit.fetch(_ROWS, tenant_id, start_at, end_at)
    return [(SegmentId.of(row["id"]), _rated(row), row) for row in rows]


def _rated(row: asyncpg.Record) -> RatedSegment:
    segment = Segment(
        kind=SegmentKind(row["kind"]),
        allocation_id=timeline_of(allocation_of(row)).allocation_id,
        parties=timeline_of(allocation_of(row)).parties,
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
            PriceVersionId.of(row["list_version_id"]), row["currency"], row["list_unit_price"], row["per_hour"], 0
        ),
        price=Price(PriceVersionId.of(row["price_version_id"]), row["currency"], row["unit_price"], row["per_hour"], 0),
    )


async def written_until(unit: UnitOfWork, allocation_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Allocation -> the end of its last written segment; those without any are left out."""
    rows = await unit.fetch(
        "SELECT allocation_id, max(end_at) AS end_at FROM segment WHERE allocation_id = ANY($1::uuid[]) GROUP BY 1",
        list(allocation_ids),
    )
    return {row["allocation_id"]: row["end_at"] for row in rows}
