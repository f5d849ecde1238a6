"""`/v1/statements`: what a tenant owes, and the lines behind it."""

from fastapi import APIRouter, Request

from millpond_billing.domain.timeline import moment_of
from millpond_billing.routes.access import kernel_of, tenant_filter, wanted_tenant
from millpond_billing.routes.charges import KindQuery, PeriodStart, SkuQuery, list_of_period
from millpond_billing.store import statements as rows_of_statements
from millpond_billing.store.tenants import get_tenant
from millpond_billing.usecases.periods import find_period
from millpond_billing.usecases.statements import draft_statement
from millpond_contracts.bodies.bills import ChargeView, StatementView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import StatementId, TenantId
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.pagination import Paging, make_page

router = APIRouter(prefix="/v1/statements", tags=["statements"])


@router.get("")
async def list_statements(
    request: Request, caller: ReaderCaller, paging: Paging, tenant_id: TenantId | None = None
) -> Page[StatementView]:
    """Lists closed statements."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        rows = await rows_of_statements.list_statements(
            unit, paging.after_uuid(), paging.limit + 1, tenant_filter(caller, tenant_id)
        )
    return make_page(rows, paging, rows_of_statements.statement_view, lambda row: StatementId.of(row["id"]))


@router.get("/current")
async def get_current(
    request: Request, caller: ReaderCaller, tenant_id: TenantId | None = None, period_start: PeriodStart = None
) -> StatementView:
    """The statement of a period: closed when it is, else what is owed so far."""
    kernel = kernel_of(request)
    now = await kernel.database.now()
    tenant_key = wanted_tenant(caller, tenant_id)
    async with kernel.database.begin(caller.scope) as unit:
        tenant = await get_tenant(unit, tenant_key)
        period = await find_period(unit, tenant, period_start, now)
        closed = await rows_of_statements.find_closed(unit, tenant_key, moment_of(period.start))
        return closed or await draft_statement(unit, tenant, period, now)


@router.get("/{statement_id}")
async def get_statement(request: Request, statement_id: StatementId, caller: ReaderCaller) -> StatementView:
    """One closed statement."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        return await rows_of_statements.get_statement(unit, statement_id)


@router.get("/{statement_id}/lines")
async def list_lines(
    request: Request,
    statement_id: StatementId,
    caller: ReaderCaller,
    paging: Paging,
    kind: KindQuery = None,
    sku: SkuQuery = None,
) -> Page[ChargeView]:
    """The lines of a closed statement, in order of time; those of one `kind` add up to its subtotal."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        statement = await rows_of_statements.get_statement(unit, statement_id)
    return await list_of_period(
        request, caller, paging, statement.tenant_id, statement.period_start, kind=kind, sku=sku
    )
