"""`/v1/charges`: every line behind a statement, and their sums by whatever is asked for."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from millpond_billing.domain.periods import Period
from millpond_billing.domain.timeline import moment_of
from millpond_billing.routes.access import kernel_of, tenant_filter, wanted_tenant
from millpond_billing.store.charge_sums import ChargeFilter
from millpond_billing.store.statements import find_period_row
from millpond_billing.store.tenants import get_tenant
from millpond_billing.usecases.charge_sums import SumPlace, SumQuery, parse_sum_place, sum_charges
from millpond_billing.usecases.charges import ChargeQuery, parse_place
from millpond_billing.usecases.charges import list_charges as read_charges
from millpond_billing.usecases.periods import find_period
from millpond_contracts.bodies.bills import ChargeKind, ChargeSums, ChargeView, GroupKey, Sku
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import JobId, NodeId, PoolId, ProjectId, TenantId
from millpond_contracts.quantities import Instant, Name
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.filters import LabelQuery
from millpond_kernel.pagination import Paging, encode_cursor
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork

router = APIRouter(prefix="/v1/charges", tags=["charges"])

PeriodStart = Annotated[Instant | None, Query(description="start of the period; none = the present one")]
KindQuery = Annotated[ChargeKind | None, Query(description="only charges of this cause")]
SkuQuery = Annotated[Sku | None, Query(description="only charges of this SKU, such as `cpu/*/on_demand`")]


@router.get("")
async def list_charges(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    tenant_id: TenantId | None = None,
    period_start: PeriodStart = None,
    job_id: JobId | None = None,
    project_id: ProjectId | None = None,
    kind: KindQuery = None,
    sku: SkuQuery = None,
) -> Page[ChargeView]:
    """The charges of a period up to now, in order of time."""
    key = wanted_tenant(caller, tenant_id)
    return await list_of_period(request, caller, paging, key, period_start, job_id, project_id, kind, sku)


async def list_of_period(
    request: Request,
    caller: Principal,
    paging: Paging,
    tenant_id: TenantId,
    period_start: datetime | None,
    job_id: JobId | None = None,
    project_id: ProjectId | None = None,
    kind: ChargeKind | None = None,
    sku: str | None = None,
) -> Page[ChargeView]:
    """A page of the charges of a tenant's period."""
    kernel = kernel_of(request)
    now = await kernel.database.now()
    async with kernel.database.begin(caller.scope) as unit:
        tenant = await get_tenant(unit, tenant_id)
        period = await find_period(unit, tenant, period_start, now)
        query = ChargeQuery(tenant_id, period, now, job_id, project_id, kind=kind, sku=sku)
        views, following = await read_charges(unit, query, parse_place(paging.after_text()), paging.limit)
    return Page[ChargeView](items=views, next_cursor=None if following is None else encode_cursor(str(following)))


@router.get("/sums")
async def sum_by_groups(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    group_by: Annotated[
        list[GroupKey] | None,
        Query(
            max_length=16,
            description="any of tenant, project, job, pool, node, resource, flavor, label:KEY, and one of hour, day,"
            " month in the tenant's zone; several at once, none = one sum",
        ),
    ] = None,
    tenant_id: Annotated[TenantId | None, Query(description="an operator who names none sums all tenants")] = None,
    period_start: Annotated[Instant | None, Query(description="of a tenant's period; none = the present one")] = None,
    start_at: Annotated[Instant | None, Query(description="instead of a period: from this instant")] = None,
    end_at: Annotated[Instant | None, Query(description="with start_at: up to this instant; none = now")] = None,
    project_id: ProjectId | None = None,
    job_id: JobId | None = None,
    pool_id: PoolId | None = None,
    node_id: NodeId | None = None,
    flavor: Annotated[Name | None, Query(description="a device's flavor; CPU and memory have none")] = None,
    label: LabelQuery = (),
) -> ChargeSums:
    """Exact sums of charges in groups, over a tenant's period or any interval; every page tells the sum of all."""
    wanted = ChargeFilter(
        tenant_filter(caller, tenant_id), project_id, job_id, pool_id, node_id, flavor, tuple(map(_label, label))
    )
    dimensions = tuple(group_by or ())
    place = parse_sum_place(paging.after_text(), len(dimensions))
    kernel = kernel_of(request)
    now = await kernel.database.now() if place is None else place.as_of
    async with kernel.database.begin(caller.scope) as unit:
        start, end, zone = await _interval(unit, wanted.tenant_id, period_start, (start_at, end_at), now, place)
        return await sum_charges(unit, SumQuery(wanted, start, end, now, zone, dimensions), place, paging.limit)


async def _interval(
    unit: UnitOfWork,
    tenant_id: TenantId | None,
    period_start: datetime | None,
    between: tuple[datetime | None, datetime | None],
    now: datetime,
    place: SumPlace | None,
) -> tuple[datetime, datetime, str | None]:
    """What is summed: the interval, and the zone of its clock (null = each tenant's)."""
    start, end = between
    tenant = None if tenant_id is None else await get_tenant(unit, tenant_id)
    zone = None if tenant is None else tenant.timezone
    if start is not None or end is not None:
        return *_between(start, end, period_start, now, place), zone
    if tenant is None:
        raise ProblemError(ErrorCode.BODY_INVALID, "Operator keys belong to no tenant: add start_at, or tenant_id.")
    period: Period = await find_period(unit, tenant, period_start, now)
    kept = await find_period_row(unit, tenant.tenant_id, moment_of(period.start))
    return moment_of(period.start), moment_of(period.end), zone if kept is None else kept.timezone


def _between(
    start: datetime | None, end: datetime | None, period_start: datetime | None, now: datetime, place: SumPlace | None
) -> tuple[datetime, datetime]:
    if start is None or period_start is not None:
        raise ProblemError(
            ErrorCode.BODY_INVALID, "Name start_at, with end_at if it is not now, or period_start; not both."
        )
    last = end or (now if place is None else place.end)
    if start >= last:
        raise ProblemError(ErrorCode.BODY_INVALID, "start_at must lie before end_at, which is now unless it is named.")
    return start, last


def _label(text: str) -> tuple[str, str | None]:
    """`KEY=VALUE` as both; `KEY`, which takes any value, with null."""
    key, given, value = text.partition("=")
    return key, value if given else None
