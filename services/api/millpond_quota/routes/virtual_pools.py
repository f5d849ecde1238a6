"""`/v1/virtual-pools` and their alerts."""

from fastapi import APIRouter, Request, Response

from millpond_contracts.bodies.shapes import Page
from millpond_contracts.bodies.tenants import LimitAlert, VirtualPoolChange, VirtualPoolSpec, VirtualPoolView
from millpond_contracts.ids import AlertId, PoolId, TenantId, VirtualPoolId
from millpond_kernel.auth import OperatorCaller, ReaderCaller
from millpond_kernel.filters import LabelQuery, NameQuery
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_quota.store import alerts as rows_of_alerts
from millpond_quota.store import virtual_pools as rows_of_pools
from millpond_quota.usecases import virtual_pools as usecases

router = APIRouter(prefix="/v1/virtual-pools", tags=["virtual pools"])


@router.post("", status_code=201, response_model=VirtualPoolView)
async def create_virtual_pool(
    request: Request, spec: VirtualPoolSpec, caller: OperatorCaller, key: IdempotencyKey
) -> Response:
    """Creates a tenant's share of a pool."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_virtual_pool(unit, caller, spec),
        location=lambda made: f"/v1/virtual-pools/{made.virtual_pool_id}",
    )


@router.get("")
async def list_virtual_pools(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    tenant_id: TenantId | None = None,
    pool_id: PoolId | None = None,
    name: NameQuery = None,
    label: LabelQuery = (),
) -> Page[VirtualPoolView]:
    """Lists virtual pools."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_pools.list_virtual_pools(
            unit, paging.after_uuid(), paging.limit + 1, tenant_id=tenant_id, pool_id=pool_id, name=name, labels=label
        )
    return make_page(rows, paging, rows_of_pools.virtual_pool_view, lambda row: VirtualPoolId.of(row["id"]))


@router.get("/{virtual_pool_id}")
async def get_virtual_pool(
    request: Request, response: Response, virtual_pool_id: VirtualPoolId, caller: ReaderCaller
) -> VirtualPoolView:
    """One virtual pool with its limits."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await rows_of_pools.get_virtual_pool(unit, virtual_pool_id)
    response.headers["ETag"] = etag(view.generation)
    return view


@router.patch("/{virtual_pool_id}")
async def change_virtual_pool(
    request: Request,
    response: Response,
    virtual_pool_id: VirtualPoolId,
    change: VirtualPoolChange,
    caller: OperatorCaller,
    match: IfMatch,
) -> VirtualPoolView:
    """Changes limits, policy or labels, live."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.change_virtual_pool(unit, caller, virtual_pool_id, change, match)
    response.headers["ETag"] = etag(view.generation)
    return view


@router.delete("/{virtual_pool_id}", status_code=204)
async def delete_virtual_pool(
    request: Request, virtual_pool_id: VirtualPoolId, caller: OperatorCaller, match: IfMatch
) -> None:
    """Deletes a virtual pool: nothing new is admitted."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.delete_virtual_pool(unit, caller, virtual_pool_id, match)


@router.get("/{virtual_pool_id}/alerts")
async def list_alerts(
    request: Request, virtual_pool_id: VirtualPoolId, caller: ReaderCaller, paging: Paging
) -> Page[LimitAlert]:
    """Lists the crossings of this virtual pool's limits, one alert each."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await rows_of_pools.get_virtual_pool(unit, virtual_pool_id)
        rows = await rows_of_alerts.list_alerts(unit, virtual_pool_id, paging.after_uuid(), paging.limit + 1)
    return make_page(rows, paging, rows_of_alerts.limit_alert, lambda row: AlertId.of(row["id"]))
