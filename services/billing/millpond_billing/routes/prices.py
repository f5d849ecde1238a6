"""`/v1/price-books`: published versions of prices."""

from fastapi import APIRouter, Request, Response

from millpond_billing.routes.access import kernel_of
from millpond_billing.store import prices as rows_of_prices
from millpond_billing.usecases.prices import publish_prices
from millpond_contracts.bodies.bills import PriceVersionSpec, PriceVersionView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import PriceVersionId
from millpond_kernel.auth import OperatorCaller, ReaderCaller
from millpond_kernel.generation import etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page

router = APIRouter(prefix="/v1/price-books", tags=["prices"])


@router.post("", status_code=201, response_model=PriceVersionView)
async def publish(request: Request, spec: PriceVersionSpec, caller: OperatorCaller, key: IdempotencyKey) -> Response:
    """Publishes prices; they never change, a later version follows them."""
    kernel = kernel_of(request)
    return await run_idempotent(
        request,
        kernel.database,
        caller,
        key,
        lambda unit: publish_prices(unit, caller, spec),
        location=lambda made: f"/v1/price-books/{made.price_version_id}",
    )


@router.get("")
async def list_versions(request: Request, caller: ReaderCaller, paging: Paging) -> Page[PriceVersionView]:
    """Lists published versions: the public ones and, for a tenant, its own."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        rows = await rows_of_prices.list_price_versions(unit, paging.after_uuid(), paging.limit + 1)
    return make_page(rows, paging, rows_of_prices.price_version_view, lambda row: PriceVersionId.of(row["id"]))


@router.get("/{price_version_id}")
async def get_version(
    request: Request, response: Response, price_version_id: PriceVersionId, caller: ReaderCaller
) -> PriceVersionView:
    """One published version."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        view = await rows_of_prices.get_price_version(unit, price_version_id)
    response.headers["ETag"] = etag(view.generation)
    return view
