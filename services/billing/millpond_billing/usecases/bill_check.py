"""The bill identity: list value of the metered time plus the named lines is the statement.

The list value is found without the charges.
"""

import itertools
from datetime import datetime
from decimal import Decimal

from millpond_billing.domain.conservation import TimeState, bill_difference, held_spans
from millpond_billing.domain.periods import Period
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.statements import assemble_statement, charges_in
from millpond_billing.domain.timeline import Timeline, instant_of, moment_of
from millpond_billing.store.allocations import list_active_between, timeline_of
from millpond_billing.store.prices import load_price_book
from millpond_billing.store.tenants import calendar_of, get_tenant
from millpond_billing.usecases.metering import metered_segments
from millpond_contracts.bodies.bills import BillCheck
from millpond_contracts.ids import TenantId
from millpond_contracts.prices import EXACT
from millpond_contracts.quantities import ExactDecimal, Money
from millpond_kernel.uow import UnitOfWork


async def check_bill(unit: UnitOfWork, tenant_id: TenantId, now: datetime) -> BillCheck:
    """The check of the tenant's present period up to now."""
    tenant = await get_tenant(unit, tenant_id)
    period = calendar_of(tenant).period_at(instant_of(now))
    until = min(instant_of(now), period.end)
    segments = await metered_segments(unit, tenant_id, period.start, period.end, instant_of(now))
    charges = charges_in((one.rated for one in segments), period)
    currency = charges[0].price.currency if charges else tenant.currency
    statement = assemble_statement(tenant_id, period, currency, charges)
    book = await load_price_book(unit)
    allocations = await list_active_between(unit, tenant_id, moment_of(period.start), moment_of(until))
    value = Decimal(0)
    for allocation in allocations:
        value = EXACT.add(value, _list_value(timeline_of(allocation), book, period, until))
    difference = bill_difference(statement, value)

    def money(amount: Decimal) -> Money:
        return Money(amount=ExactDecimal(amount), currency=currency)

    return BillCheck(
        tenant_id=tenant_id,
        period_start=moment_of(period.start),
        metered_list_value=money(value),
        statement_total=money(statement.total),
        difference=money(difference),
    )


def _list_value(timeline: Timeline, book: PriceBook, period: Period, until: int) -> Decimal:
    """List value of an allocation's active and releasing time within the period."""
    value = Decimal(0)
    changes = list(book.change_points(timeline.parties.tenant_id))
    for sku in timeline.skus():
        for span in held_spans(timeline, sku, until):
            if span.state is TimeState.STARTING:
                continue
            start, end = max(span.start, period.start), min(span.end, period.end)
            points = sorted({start, end, *(change for change in changes if start < change < end)})
            for first, last in itertools.pairwise(points):
                value = EXACT.add(value, book.price_at(sku, None, first).amount(span.amount, last - first))
    return value
