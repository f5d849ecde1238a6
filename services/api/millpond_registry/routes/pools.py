"""`/v1/pools`: operators change pools, tenants see the shared ones and their own."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from millpond_contracts.bodies.loans import LoanState, LoanView, ReturnRequest, ShortageView
from millpond_contracts.bodies.pools import PoolCapacity, PoolSpec, PoolView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import LoanId, PoolId
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.filters import LabelQuery, NameQuery
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_registry.routes.access import CatalogueReader
from millpond_registry.store import loans as rows_of_loans
from millpond_registry.store import pools as rows_of_pools
from millpond_registry.usecases import capacity, loans
from millpond_registry.usecases import pools as usecases

router = APIRouter(prefix="/v1/pools", tags=["pools"])


@router.post("", status_code=201, response_model=PoolView)
async def create_pool(request: Request, spec: PoolSpec, caller: OperatorCaller, key: IdempotencyKey) -> Response:
    """Creates a pool."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_pool(unit, caller, spec),
        location=lambda made: f"/v1/pools/{made.pool_id}",
    )


@router.get("")
async def list_pools(
    request: Request,
    caller: CatalogueReader,
    paging: Paging,
    name: NameQuery = None,
    label: LabelQuery = (),
) -> Page[PoolView]:
    """Lists the pools that the caller may use."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_pools.list_pools(unit, paging.after_uuid(), paging.limit + 1, name, label)
    return make_page(rows, paging, rows_of_pools.pool_view, lambda row: PoolId.of(row["id"]))


@router.get("/{pool_id}")
async def get_pool(request: Request, response: Response, pool_id: PoolId, caller: CatalogueReader) -> PoolView:
    """One pool."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        pool = await usecases.get_pool(unit, pool_id)
    response.headers["ETag"] = etag(pool.generation)
    return pool


@router.get("/{pool_id}/capacity")
async def get_capacity(request: Request, response: Response, pool_id: PoolId, caller: CatalogueReader) -> PoolCapacity:
    """What the pool has, holds, and can still take, per flavor and for CPU and memory."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        figures = await capacity.get_capacity(unit, pool_id)
    response.headers["ETag"] = etag(figures.generation)
    return figures


@router.get("/{pool_id}/shortages")
async def list_shortages(request: Request, pool_id: PoolId, caller: OperatorCaller) -> Page[ShortageView]:
    """What the pool has less of than its thresholds ask for."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        found = await loans.list_shortages(unit, pool_id)
    return Page[ShortageView](items=list(found))


@router.get("/{pool_id}/loans")
async def list_loans(
    request: Request,
    pool_id: PoolId,
    caller: OperatorCaller,
    paging: Paging,
    state: Annotated[LoanState | None, Query(description="only loans in this state")] = None,
) -> Page[LoanView]:
    """Nodes that the pool lent or borrowed: who lent what, why, and when it returns."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.get_pool(unit, pool_id)
        found = await rows_of_loans.list_loans(unit, pool_id, paging.after_uuid(), paging.limit + 1, state)
    return make_page(found, paging, lambda loan: loan, lambda loan: loan.loan_id)


@router.post("/{pool_id}/loans/{loan_id}/return", status_code=202)
async def return_node(
    request: Request, pool_id: PoolId, loan_id: LoanId, body: ReturnRequest, caller: OperatorCaller
) -> LoanView:
    """Sends a lent node home before it is due; what still runs at the deadline is stopped."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        return await loans.return_node(unit, caller, pool_id, loan_id, body)


@router.put("/{pool_id}")
async def replace_pool(
    request: Request, response: Response, pool_id: PoolId, spec: PoolSpec, caller: OperatorCaller, match: IfMatch
) -> PoolView:
    """Replaces a pool's description; its nodes stay."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        pool = await usecases.replace_pool(unit, caller, pool_id, spec, match)
    response.headers["ETag"] = etag(pool.generation)
    return pool


@router.delete("/{pool_id}", status_code=204)
async def delete_pool(request: Request, pool_id: PoolId, caller: OperatorCaller, match: IfMatch) -> None:
    """Deletes an empty pool and revokes the join tokens that led into it."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.delete_pool(unit, caller, pool_id, match)
