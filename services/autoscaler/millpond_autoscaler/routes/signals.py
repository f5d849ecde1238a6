"""`/v1/signals`: what was measured, in windows of 15 seconds."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from millpond_autoscaler.store import signals as rows_of_signals
from millpond_contracts.bodies.scaling import SignalAggregate
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import PoolId
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.pagination import Paging, make_page

router = APIRouter(prefix="/v1/signals", tags=["scaling"])


@router.get("")
async def list_signals(
    request: Request,
    caller: OperatorCaller,
    paging: Paging,
    pool_id: PoolId | None = None,
    flavor: Annotated[str | None, Query(max_length=64, description="or `node`")] = None,
    name: Annotated[str | None, Query(max_length=64)] = None,
    hours: Annotated[int, Query(ge=1, le=168)] = 1,
) -> Page[SignalAggregate]:
    """Lists aggregates of the last hours, the newest first."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_signals.list_windows(
            unit, paging.after_text(), paging.limit + 1, hours=hours, pool_id=pool_id, flavor=flavor, name=name
        )
    return make_page(rows, paging, rows_of_signals.aggregate_view, lambda row: str(row["position"]))
