"""`/v1/reports`: what things cost, against what a fixed fleet would have cost."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request

from millpond_billing.routes.access import kernel_of, tenant_filter
from millpond_billing.store.tenants import get_tenant
from millpond_billing.usecases.charge_sums import parse_sum_place
from millpond_billing.usecases.cost_reports import CostQuery, report_costs
from millpond_contracts.bodies.bills import CostKey, CostReport
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_contracts.quantities import Instant
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.pagination import Paging
from millpond_kernel.problem import ProblemError

router = APIRouter(prefix="/v1/reports", tags=["reports"])


@router.get("/cost")
async def report_cost(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    group_by: CostKey = CostKey.JOB,
    start_at: Annotated[Instant | None, Query(description="default: a day before the end")] = None,
    end_at: Annotated[Instant | None, Query(description="default, and at most: now")] = None,
    tenant_id: Annotated[TenantId | None, Query(description="of one tenant, without the fleet")] = None,
) -> CostReport:
    """What jobs, projects, tenants or pools cost; for operators the whole fleet beside it, idle told apart."""
    kernel = kernel_of(request)
    now = await kernel.database.now()
    place = parse_sum_place(paging.after_text(), 1)
    # A later page ends where the first one did, although the present has moved on.
    end = min((end_at or now) if place is None else place.end, now)
    start = start_at or end - timedelta(days=1)
    if start >= end:
        raise ProblemError(ErrorCode.BODY_INVALID, "start_at must lie before end_at, and before now.")
    key = tenant_filter(caller, tenant_id)
    async with kernel.database.begin(caller.scope) as unit:
        if caller.tenant_id is None:
            # One moment for everything: what is released meanwhile would else be on one side only.
            await unit.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if key is not None:
            await get_tenant(unit, key)
        return await report_costs(unit, CostQuery(key, start, end, group_by), place, paging.limit)
