"""The bill identity: list value of the metered time plus the named lines is the statement.

The list value is found without the charges.
"""

import itertools
from datetime import datetime
from decimal import Decimal

from millpond_billing.domain.conservation import TimeState, bill_difference, held_spans
from millpond_billing.domain.periods import Period
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.statements import Statement, StatementLine
from millpond_billing.domain.timeline import Timeline, instant_of, moment_of
from millpond_billing.store import adjustments
from millpond_billing.store.allocations import list_held_between, timeline_of
from millpond_billing.store.prices import load_price_book
from millpond_billing.store.statements import find_closed
from millpond_billing.store.tenants import get_tenant
from millpond_billing.usecases.periods import find_period
from millpond_billing.usecases.statements import compute_statement
from millpond_contracts.bodies.bills import BillCheck, ChargeKind
from millpond_contracts.ids import TenantId
from millpond_contracts.prices import EXACT, exact_sum
from millpond_contracts.quantities import ExactDecimal, Money
from millpond_kernel.uow import UnitOfWork


async def check_bill(unit: UnitOfWork, tenant_id: TenantId, period_start: datetime | None, now: datetime) -> BillCheck:
    """The check of a period of the tenant up to now; of a closed one, with what was adjusted of it since."""
    tenant = await get_tenant(unit, tenant_id)
    period = await find_period(unit, tenant, period_start, now)
    until = min(instant_of(now), period.end)
    statement = await _statement(unit, tenant_id, period, now)
    book = await load_price_book(unit)
    value = Decimal(0)
    async for one in list_held_between(unit, tenant_id, moment_of(period.start), moment_of(until)):
        value = EXACT.add(value, _list_value(timeline_of(one), book, period, until))
    # Usage adjusted since stands on a later statement; without it this one shows the metered time as it was known.
    since = await adjustments.list_of_period(unit, tenant_id, moment_of(period.start))
    adjusted = exact_sum(one.amount for one in since if one.key.kind is ChargeKind.USAGE)
    difference = EXACT.subtract(bill_difference(statement, value), adjusted)

    def money(amount: Decimal) -> Money:
        return Money(amount=ExactDecimal(amount), currency=statement.currency)

    return BillCheck(
        tenant_id=tenant_id,
        period_start=moment_of(period.start),
        metered_list_value=money(value),
        statement_total=money(statement.total),
        difference=money(difference),
    )


async def _statement(unit: UnitOfWork, tenant_id: TenantId, period: Period, now: datetime) -> Statement:
    closed = await find_closed(unit, tenant_id, moment_of(period.start))
    if closed is None:
        statement, _ = await compute_statement(unit, tenant_id, period, now)
        return statement
    # The closed one counts, by its own lines.
    lines = [StatementLine(kind, None, 0, money.amount) for kind, money in closed.subtotals.items()]
    return Statement(tenant_id, period, closed.currency, tuple(lines), closed.total.amount)


def _list_value(timeline: Timeline, book: PriceBook, period: Period, until: int) -> Decimal:
    """List value of an allocation's active and releasing time within the period."""
    value = Decimal(0)
    changes = list(book.change_points(timeline.parties.tenant_id))
    for sku in timeline.skus():
        for span in held_spans(timeline, sku, until):
            if span.state is TimeState.STARTING:
                continue
            start, end = max(span.start, period.start), min(span.end, period.end)
            if start >= end:
                continue
            points = sorted({start, end, *(change for change in changes if start < change < end)})
            for first, last in itertools.pairwise(points):
                value = EXACT.add(value, book.price_at(sku, None, first).amount(span.amount, last - first))
    return value
