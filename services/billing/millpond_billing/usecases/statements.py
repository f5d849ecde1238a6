"""Statements: computed while a period runs, closed once with a gapless number and a digest over the one before."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg

from millpond_billing.domain.periods import Calendar, Period
from millpond_billing.domain.statements import Statement, assemble_statement, charges_in
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store import statements as rows
from millpond_billing.store import tenants
from millpond_billing.usecases.metering import MeteredSegment, metered_segments, write_open
from millpond_contracts.bodies.bills import ChargeKind, StatementState, StatementView
from millpond_contracts.bodies.tenants import TenantView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.billing import StatementClosed
from millpond_contracts.ids import StatementId, TenantId
from millpond_contracts.quantities import ExactDecimal, Money
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


def find_period(calendar: Calendar, start: datetime | None, now: datetime) -> Period:
    """The period that starts at `start`, or the present one.

    Raises:
        ProblemError: 422 `billing.statement.period`: `start` is no period start of this tenant.
    """
    if start is None:
        return calendar.period_at(instant_of(now))
    period = calendar.period_at(instant_of(start))
    if period.start != instant_of(start):
        raise ProblemError(
            ErrorCode.STATEMENT_PERIOD,
            f"No period of this tenant starts at {start.isoformat()}; the one around it starts at"
            f" {moment_of(period.start).isoformat()}.",
        )
    return period


async def draft_statement(
    unit: UnitOfWork, tenant: TenantView, period: Period, now: datetime
) -> tuple[StatementView, Sequence[MeteredSegment]]:
    """What the tenant owes so far for a period that is not closed, and every segment behind it."""
    segments = await metered_segments(unit, tenant.tenant_id, period.start, period.end, instant_of(now))
    statement = _assemble(tenant, period, segments, None)
    return _view(statement, tenant, now, segments), segments


def _assemble(
    tenant: TenantView, period: Period, segments: Sequence[MeteredSegment], previous_digest: str | None
) -> Statement:
    charges = charges_in((one.rated for one in segments), period)
    # A price book has one currency; a tenant without any use is told in its own.
    currency = charges[0].price.currency if charges else tenant.currency
    return assemble_statement(tenant.tenant_id, period, currency, charges, (), previous_digest)


def _view(
    statement: Statement, tenant: TenantView, as_of: datetime, segments: Sequence[MeteredSegment]
) -> StatementView:
    kinds = list(dict.fromkeys(line.kind for line in statement.lines)) or [ChargeKind.USAGE]
    money = {kind: _money(statement.subtotal(kind), statement.currency) for kind in kinds}
    return StatementView(
        statement_id=None,
        tenant_id=tenant.tenant_id,
        state=StatementState.DRAFT,
        number=None,
        period_start=moment_of(statement.period.start),
        period_end=moment_of(statement.period.end),
        as_of=as_of,
        timezone=tenant.timezone,
        currency=statement.currency,
        subtotals=money,
        total=_money(statement.total, statement.currency),
        lines=len(charges_in((one.rated for one in segments), statement.period)),
        seconds=statement.seconds,
        digest=None,
        closed_at=None,
    )


def _money(amount: Any, currency: str) -> Money:
    return Money(amount=ExactDecimal(amount), currency=currency)


async def close_statement(unit: UnitOfWork, row: asyncpg.Record, now: datetime) -> StatementView:
    """Closes a queued statement: slices of running work, the exact sum, the next number, the digest. Once, for good."""
    tenant = await tenants.get_tenant(unit, TenantId.of(row["tenant_id"]))
    period = Period(row["period_number"], instant_of(row["period_start"]), instant_of(row["period_end"]))
    await write_open(unit, tenant.tenant_id, period.end)
    segments = await metered_segments(unit, tenant.tenant_id, period.start, period.end, period.end)
    unwritten = [one for one in segments if one.segment_id is None]
    assert not unwritten, f"{len(unwritten)} segments of a closed period are not written"
    statement = _assemble(
        tenant, period, segments, await rows.previous_digest(unit, tenant.tenant_id, row["period_start"])
    )
    number = await rows.next_number(unit)
    statement_id = StatementId.of(row["id"])
    view = _view(statement, tenant, moment_of(period.end), segments).model_copy(
        update={
            "statement_id": statement_id,
            "state": StatementState.CLOSED,
            "number": number,
            "digest": statement.digest,
            "closed_at": now,
        }
    )
    await rows.save_closed(unit, view)
    unit.emit(StatementClosed(statement=view, generation=1))
    return view


async def queue_due(unit: UnitOfWork, now: datetime, grace_seconds: int) -> list[StatementId]:
    """Inserts a row for every ended period, its grace over, that has none; the ids to hand out."""
    made: list[StatementId] = []
    for tenant in await tenants.list_tenants(unit):
        calendar = tenants.calendar_of(tenant)
        first = await rows.first_use(unit, tenant.tenant_id)
        if first is None:
            continue
        period = calendar.period_at(instant_of(first))
        while period.end + grace_seconds * 1_000_000 <= instant_of(now):
            key = await rows.queue_statement(unit, tenant, period)
            if key is not None:
                made.append(key)
            period = calendar.period(period.number + 1)
    return made
