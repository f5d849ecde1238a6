"""`/v1/reservations`."""

from fastapi import APIRouter, Request, Response

from millpond_contracts.bodies.reservations import ReservationSpec, ReservationView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import PoolId, ReservationId, TenantId, VirtualPoolId
from millpond_kernel.auth import OperatorCaller, ReaderCaller
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_quota.store import reservations as rows_of_reservations
from millpond_quota.usecases import reservations as usecases

router = APIRouter(prefix="/v1/reservations", tags=["reservations"])


@router.post("", status_code=201, response_model=ReservationView)
async def create_reservation(
    request: Request, spec: ReservationSpec, caller: OperatorCaller, key: IdempotencyKey
) -> Response:
    """Holds devices for a virtual pool in a time window, though idle. Nobody else gets them meanwhile."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_reservation(unit, caller, spec),
        location=lambda made: f"/v1/reservations/{made.reservation_id}",
    )


@router.get("")
async def list_reservations(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    tenant_id: TenantId | None = None,
    virtual_pool_id: VirtualPoolId | None = None,
    pool_id: PoolId | None = None,
) -> Page[ReservationView]:
    """Lists reservations that were not cancelled."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_reservations.list_reservations(
            unit,
            paging.after_uuid(),
            paging.limit + 1,
            tenant_id=tenant_id,
            virtual_pool_id=virtual_pool_id,
            pool_id=pool_id,
        )
    return make_page(rows, paging, rows_of_reservations.reservation_view, lambda row: ReservationId.of(row["id"]))


@router.get("/{reservation_id}")
async def get_reservation(
    request: Request, response: Response, reservation_id: ReservationId, caller: ReaderCaller
) -> ReservationView:
    """One reservation."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await rows_of_reservations.get_reservation(unit, reservation_id)
    response.headers["ETag"] = etag(view.generation)
    return view


@router.delete("/{reservation_id}", status_code=204)
async def cancel_reservation(
    request: Request, reservation_id: ReservationId, caller: OperatorCaller, match: IfMatch
) -> None:
    """Cancels a reservation: from now on it holds nothing; what runs goes on."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.cancel_reservation(unit, caller, reservation_id, match)
