"""`/v1/packings`: how a pool is packed, as replays of its own jobs propose it and an operator accepts it."""

from fastapi import APIRouter, Request, Response

from millpond_contracts.bodies.packings import PackingSpec, PackingView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import PackingId, PoolId
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_scheduler.store import packings as rows_of_packings
from millpond_scheduler.usecases import packings as usecases

router = APIRouter(prefix="/v1/packings", tags=["packings"])


@router.post("", status_code=202, response_model=PackingView)
async def request_packing(request: Request, spec: PackingSpec, caller: OperatorCaller, key: IdempotencyKey) -> Response:
    """Replays a pool's newest jobs in the background; read the proposal until its state is `ready`."""
    response = await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.request_packing(unit, caller, spec.pool_id),
        status=202,
        location=lambda made: f"/v1/packings/{made.packing_id}",
    )
    await request.app.state.enqueue("packing", str(PackingView.model_validate_json(bytes(response.body)).packing_id))
    return response


@router.get("")
async def list_packings(
    request: Request, caller: OperatorCaller, paging: Paging, pool_id: PoolId | None = None
) -> Page[PackingView]:
    """Lists proposals, without how much changed since."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_packings.list_packings(unit, paging.after_uuid(), paging.limit + 1, pool_id)
    return make_page(rows, paging, rows_of_packings.packing_view, lambda row: PackingId.of(row["id"]))


@router.get("/{packing_id}")
async def get_packing(request: Request, packing_id: PackingId, caller: OperatorCaller) -> PackingView:
    """A proposal: the setting, what the replays gained by it, and how much of the demand changed since."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        return await usecases.tell_packing(unit, packing_id)


@router.post("/{packing_id}/accept")
async def accept_packing(request: Request, packing_id: PackingId, caller: OperatorCaller) -> PackingView:
    """Puts a proposal in force for its pool, within a minute; the former one is withdrawn."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        return await usecases.accept_packing(unit, caller, packing_id)


@router.post("/{packing_id}/withdraw")
async def withdraw_packing(request: Request, packing_id: PackingId, caller: OperatorCaller) -> PackingView:
    """Gives the pool the default setting again, within a minute; the proposal may be accepted again."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        return await usecases.withdraw_packing(unit, caller, packing_id)
