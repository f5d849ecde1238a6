"""Rows of adjustments: what later facts change of periods that are rated or closed. Written once, never changed."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_billing.domain.periods import Period
from millpond_billing.domain.statements import Adjustment, ChargeKey
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store.segments import exact
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import AllocationId, TenantId, TypedId, uuid7_int
from millpond_contracts.prices import AMOUNT_SCALE, Sku
from millpond_kernel.uow import UnitOfWork

_INSERT = """
INSERT INTO adjustment (id, tenant_id, allocation_id, sku, kind, original_number, original_start, original_end,
    period_start, seconds, amount, currency, reason)
SELECT x.id, $11, x.allocation_id, x.sku, x.kind, x.number, x.start_at, x.end_at, $12, x.seconds, x.amount, $13,
    x.reason
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::integer[], $6::timestamptz[], $7::timestamptz[],
    $8::bigint[], $9::numeric[], $10::text[])
    AS x(id, allocation_id, sku, kind, number, start_at, end_at, seconds, amount, reason)
"""


async def insert_adjustments(
    unit: UnitOfWork,
    tenant_id: TenantId,
    period: Period,
    currency: str,
    adjustments: Sequence[Adjustment],
) -> None:
    """Posts adjustments in the statement of `period`."""
    changed = await unit.execute(
        _INSERT,
        [TypedId(int=uuid7_int()) for _ in adjustments],
        [one.key.allocation_id for one in adjustments],
        [str(one.key.sku) for one in adjustments],
        [one.key.kind.value for one in adjustments],
        [one.original_period.number for one in adjustments],
        [moment_of(one.original_period.start) for one in adjustments],
        [moment_of(one.original_period.end) for one in adjustments],
        [one.seconds for one in adjustments],
        [exact(one.amount, AMOUNT_SCALE) for one in adjustments],
        [one.reason for one in adjustments],
        tenant_id,
        moment_of(period.start),
        currency,
    )
    assert changed == len(adjustments), "every adjustment is a row"


def adjustment_of(row: asyncpg.Record) -> Adjustment:
    """The adjustment of a row."""
    return Adjustment(
        key=ChargeKey(AllocationId.of(row["allocation_id"]), Sku.parse(row["sku"]), ChargeKind(row["kind"])),
        original_period=Period(
            row["original_number"], instant_of(row["original_start"]), instant_of(row["original_end"])
        ),
        seconds=row["seconds"],
        amount=row["amount"],
        reason=row["reason"],
    )


async def list_of_allocations(unit: UnitOfWork, allocation_ids: Sequence[AllocationId]) -> list[Adjustment]:
    """Everything adjusted so far of these allocations."""
    rows = await unit.fetch("SELECT * FROM adjustment WHERE allocation_id = ANY($1::uuid[])", list(allocation_ids))
    return [adjustment_of(row) for row in rows]


async def list_posted(unit: UnitOfWork, tenant_id: TenantId, period_start: int) -> list[Adjustment]:
    """What the statement of a period carries."""
    rows = await unit.fetch(
        "SELECT * FROM adjustment WHERE tenant_id = $1 AND period_start = $2 ORDER BY id",
        tenant_id,
        moment_of(period_start),
    )
    return [adjustment_of(row) for row in rows]


async def list_posted_page(
    unit: UnitOfWork,
    tenant_id: TenantId,
    period_start: int,
    after: UUID | None,
    limit: int,
    known_at: datetime | None = None,
) -> list[asyncpg.Record]:
    """Rows of what the statement of a period carries, with the allocation, by id; none posted after `known_at`."""
    return await unit.fetch(
        "SELECT a.*, v.body FROM adjustment a JOIN allocation_view v USING (allocation_id)"
        " WHERE a.tenant_id = $1 AND a.period_start = $2 AND ($3::uuid IS NULL OR a.id > $3)"
        " AND ($5::timestamptz IS NULL OR a.posted_at <= $5) ORDER BY a.id LIMIT $4",
        tenant_id,
        moment_of(period_start),
        after,
        limit,
        known_at,
    )


async def list_posted_between(
    unit: UnitOfWork, tenant_id: TenantId | None, start_at: datetime, end_at: datetime
) -> list[asyncpg.Record]:
    """Rows of what is carried by statements of periods that begin in `[start_at, end_at)`, with the allocation."""
    return await unit.fetch(
        "SELECT a.*, v.body FROM adjustment a JOIN allocation_view v USING (allocation_id)"
        " WHERE a.period_start >= $2 AND a.period_start < $3 AND ($1::uuid IS NULL OR a.tenant_id = $1)",
        tenant_id,
        start_at,
        end_at,
    )


async def list_of_period(unit: UnitOfWork, tenant_id: TenantId, original_start: datetime) -> list[Adjustment]:
    """What was adjusted of a period since, wherever it was posted."""
    rows = await unit.fetch(
        "SELECT * FROM adjustment WHERE tenant_id = $1 AND original_start = $2", tenant_id, original_start
    )
    return [adjustment_of(row) for row in rows]
