"""Statements: computed while a period runs, closed once with a gapless number and a digest over the one before."""

from datetime import datetime

from millpond_billing.domain.periods import Period
from millpond_billing.domain.rating import charges_of
from millpond_billing.domain.statements import (
    Statement,
    StatementLine,
    Tally,
    charges_in,
    with_rounding,
)
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store import adjustments, segments
from millpond_billing.store import statements as rows
from millpond_billing.store.allocations import has_unrated, list_running, timeline_of
from millpond_billing.store.locks import lock_for_closing
from millpond_billing.store.prices import book_currency, load_price_book
from millpond_billing.store.segments import WrittenRange
from millpond_billing.usecases.metering import rate, rate_running
from millpond_contracts.bodies.bills import ChargeKind, StatementState, StatementView
from millpond_contracts.bodies.tenants import TenantView
from millpond_contracts.events.billing import StatementClosed
from millpond_contracts.ids import StatementId, TenantId
from millpond_contracts.quantities import ExactDecimal, Money
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork


async def compute_statement(
    unit: UnitOfWork, tenant_id: TenantId, period: Period, now: datetime
) -> tuple[Statement, int]:
    """What the tenant owes so far for a period that is not closed, without digests; how many charges it has.

    What is written is summed by the database; only what runs is rated here. Running allocations are read first and
    left out of the written ones, so that one released meanwhile counts once.
    """
    until = min(now, moment_of(period.end))
    book = await load_price_book(unit)
    running = await list_running(unit, tenant_id, until)
    written = WrittenRange(tenant_id, period.start, period.end, [one.allocation_id for one in running])
    lines, count = await segments.sum_written(unit, written)
    rated = [
        one for allocation in running for one in rate_running(timeline_of(allocation), book, period, instant_of(until))
    ]
    charges = charges_in(rated, period)
    posted = await adjustments.list_posted(unit, tenant_id, period.start)
    lines += [StatementLine(one.kind, one.rated.segment.sku, one.seconds, one.amount) for one in charges]
    lines += [StatementLine(ChargeKind.ADJUSTMENT, None, one.seconds, one.amount) for one in posted]
    rounded, total = with_rounding(lines, book_currency(book))
    return Statement(tenant_id, period, book_currency(book), rounded, total), count + len(charges) + len(posted)


async def draft_statement(unit: UnitOfWork, tenant: TenantView, period: Period, now: datetime) -> StatementView:
    """What the tenant owes so far for a period that is not closed, as people read it."""
    statement, count = await compute_statement(unit, tenant.tenant_id, period, now)
    kept = await rows.find_period_row(unit, tenant.tenant_id, moment_of(period.start))
    zone = tenant.timezone if kept is None else kept.timezone
    return _view(statement, zone, min(now, moment_of(period.end)), count)


def _view(statement: Statement, timezone: str, as_of: datetime, count: int) -> StatementView:
    found = {line.kind for line in statement.lines} or {ChargeKind.USAGE}
    return StatementView(
        statement_id=None,
        tenant_id=statement.tenant_id,
        state=StatementState.DRAFT,
        number=None,
        period_start=moment_of(statement.period.start),
        period_end=moment_of(statement.period.end),
        as_of=as_of,
        timezone=timezone,
        currency=statement.currency,
        subtotals={
            kind: Money(amount=ExactDecimal(statement.subtotal(kind)), currency=statement.currency)
            for kind in ChargeKind
            if kind in found
        },
        total=Money(amount=ExactDecimal(statement.total), currency=statement.currency),
        lines=count,
        seconds=statement.seconds,
        digest=None,
        closed_at=None,
    )


async def close_statement(unit: UnitOfWork, statement_id: StatementId) -> StatementView | None:
    """Closes a queued statement: slices of running work, the exact sum, the next number, the digest. Once, for good.

    None when another worker has it, it is closed, or something before it is not settled; it then stays queued.
    """
    row = await rows.lock_queued(unit, statement_id)
    if row is None:
        return None
    tenant_id, period = TenantId.of(row["tenant_id"]), rows.period_row(row).period
    await lock_for_closing(unit, tenant_id)
    running = await list_running(unit, tenant_id, row["period_end"])
    unrated = await rate(unit, [timeline_of(one) for one in running], period.end)
    if unrated or await has_unrated(unit, tenant_id):
        log.error("statement_waits", statement=str(statement_id), reason="something used is not rated yet")
        ALARMS.labels("billing", "statement_waits").inc()
        return None
    tally = Tally(tenant_id, period, book_currency(await load_price_book(unit)))
    async for one in segments.list_written(unit, WrittenRange(tenant_id, period.start, period.end)):
        for charge in charges_of(one):
            tally.add(charge)
    posted = await adjustments.list_posted(unit, tenant_id, period.start)
    before = await rows.previous_digest(unit, tenant_id, row["period_start"])
    statement = tally.statement(posted, before)
    view = _view(statement, row["timezone"], row["period_end"], tally.count + len(posted)).model_copy(
        update={
            "statement_id": statement_id,
            "state": StatementState.CLOSED,
            "number": await rows.next_number(unit),
            "digest": statement.digest,
            "closed_at": await unit.fetchval("SELECT clock_timestamp()"),
        }
    )
    await rows.save_closed(unit, view)
    unit.emit(StatementClosed(statement=view, generation=1))
    return view
