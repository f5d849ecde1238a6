"""`/v1/statements` and `/v1/charges`: what a tenant owes and every line behind it."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from millpond_billing.domain.timeline import moment_of
from millpond_billing.routes.access import Moment, kernel_of, tenant_filter, wanted_tenant
from millpond_billing.store import statements as rows_of_statements
from millpond_billing.store.tenants import get_tenant
from millpond_billing.usecases.charges import ChargeQuery, parse_place
from millpond_billing.usecases.charges import list_charges as read_charges
from millpond_billing.usecases.periods import find_period
from millpond_billing.usecases.statements import draft_statement
from millpond_contracts.bodies.bills import ChargeView, StatementView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import JobId, ProjectId, StatementId, TenantId
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.pagination import Paging, encode_cursor, make_page
from millpond_kernel.tenancy import Principal

router = APIRouter(prefix="/v1", tags=["statements"])

PeriodStart = Annotated[Moment | None, Query(description="start of the period; none = the present one")]


@router.get("/statements")
async def list_statements(
    request: Request, caller: ReaderCaller, paging: Paging, tenant_id: TenantId | None = None
) -> Page[StatementView]:
    """Lists closed statements."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        rows = await rows_of_statements.list_statements(
            unit, paging.after_uuid(), paging.limit + 1, tenant_filter(caller, tenant_id)
        )
    return make_page(rows, paging, rows_of_statements.statement_view, lambda row: StatementId.of(row["id"]))


@router.get("/statements/current")
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


@router.get("/statements/{statement_id}")
async def get_statement(request: Request, statement_id: StatementId, caller: ReaderCaller) -> StatementView:
    """One closed statement."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        return await rows_of_statements.get_statement(unit, statement_id)


@router.get("/statements/{statement_id}/lines")
async def list_lines(
    request: Request, statement_id: StatementId, caller: ReaderCaller, paging: Paging
) -> Page[ChargeView]:
    """The lines of a closed statement, in order of time."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        statement = await rows_of_statements.get_statement(unit, statement_id)
    return await _charges(request, caller, paging, statement.tenant_id, statement.period_start, None, None)


@router.get("/charges")
async def list_charges(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    tenant_id: TenantId | None = None,
    period_start: PeriodStart = None,
    job_id: JobId | None = None,
    project_id: ProjectId | None = None,
) -> Page[ChargeView]:
    """The charges of a period up to now, in order of time."""
    key = wanted_tenant(caller, tenant_id)
    return await _charges(request, caller, paging, key, period_start, job_id, project_id)


async def _charges(
    request: Request,
    caller: Principal,
    paging: Paging,
    tenant_id: TenantId,
    period_start: datetime | None,
    job_id: JobId | None,
    project_id: ProjectId | None,
) -> Page[ChargeView]:
    kernel = kernel_of(request)
    now = await kernel.database.now()
    async with kernel.database.begin(caller.scope) as unit:
        tenant = await get_tenant(unit, tenant_id)
        period = await find_period(unit, tenant, period_start, now)
        query = ChargeQuery(tenant_id, period, now, job_id, project_id)
        views, following = await read_charges(unit, query, parse_place(paging.after_text()), paging.limit)
    return Page[ChargeView](items=views, next_cursor=None if following is None else encode_cursor(str(following)))
