"""`/v1/reconciliations`: the proof that everything adds up."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request

from millpond_billing.routes.access import kernel_of
from millpond_billing.usecases.bill_check import check_bill
from millpond_billing.usecases.reconciliations import conservation_lines
from millpond_contracts.bodies.bills import Reconciliation
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import NodeId, TenantId
from millpond_contracts.quantities import Instant
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.db import SYSTEM
from millpond_kernel.problem import ProblemError

router = APIRouter(prefix="/v1/reconciliations", tags=["reconciliations"])


@router.get("")
async def reconcile(
    request: Request,
    caller: OperatorCaller,
    start_at: Annotated[Instant | None, Query(description="default: a day before the end")] = None,
    end_at: Annotated[Instant | None, Query(description="default: now")] = None,
    node_id: NodeId | None = None,
    tenant_id: TenantId | None = None,
    period_start: Annotated[Instant | None, Query(description="of the tenant's bill; none = the present one")] = None,
) -> Reconciliation:
    """Conservation of every node over an interval; with a tenant, its bill of a period as well."""
    kernel = kernel_of(request)
    now = await kernel.database.now()
    end = min(end_at or now, now)
    start = start_at or end - timedelta(days=1)
    if start >= end:
        raise ProblemError(ErrorCode.BODY_INVALID, "start_at must lie before end_at, and end_at not in the future.")
    async with kernel.database.begin(SYSTEM) as unit:
        # One moment for everything: what is released meanwhile would else be on one side only.
        await unit.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lines = await conservation_lines(unit, start, end, node_id)
        bill = None if tenant_id is None else await check_bill(unit, tenant_id, period_start, now)
    return Reconciliation(start_at=start, end_at=end, conservation=lines, bill=bill)
