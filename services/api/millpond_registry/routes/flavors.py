"""`/v1/flavors` and `/v1/accelerators`: classes of devices, and the catalogue that most of them come from."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from millpond_contracts.bodies.devices import AcceleratorView
from millpond_contracts.bodies.nodes import FlavorSpec, FlavorView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.catalogue import load_catalogue
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_registry.routes.access import CatalogueReader
from millpond_registry.store import flavors as rows_of_flavors
from millpond_registry.usecases import flavors as usecases

router = APIRouter(prefix="/v1", tags=["flavors"])

FlavorName = Annotated[str, Path(max_length=64)]


@router.post("/flavors", status_code=201, response_model=FlavorView)
async def create_flavor(request: Request, spec: FlavorSpec, caller: OperatorCaller, key: IdempotencyKey) -> Response:
    """Creates a flavor; devices that its selector describes best belong to it from now on."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_flavor(unit, caller, spec),
        location=lambda made: f"/v1/flavors/{made.name}",
    )


@router.get("/flavors")
async def list_flavors(request: Request, caller: CatalogueReader, paging: Paging) -> Page[FlavorView]:
    """Lists flavors by name."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        found = await rows_of_flavors.list_flavors(unit, paging.after_text(), paging.limit + 1)
    return make_page(found, paging, lambda flavor: flavor, lambda flavor: flavor.name)


@router.get("/flavors/{name}")
async def get_flavor(request: Request, response: Response, name: FlavorName, caller: CatalogueReader) -> FlavorView:
    """One flavor."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        flavor = await usecases.get_flavor(unit, name)
    response.headers["ETag"] = etag(flavor.generation)
    return flavor


@router.put("/flavors/{name}")
async def replace_flavor(
    request: Request, response: Response, name: FlavorName, spec: FlavorSpec, caller: OperatorCaller, match: IfMatch
) -> FlavorView:
    """Replaces an operator's flavor; every device is placed anew."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        flavor = await usecases.replace_flavor(unit, caller, name, spec, match)
    response.headers["ETag"] = etag(flavor.generation)
    return flavor


@router.delete("/flavors/{name}", status_code=204)
async def delete_flavor(request: Request, name: FlavorName, caller: OperatorCaller, match: IfMatch) -> None:
    """Deletes an operator's flavor; its devices fall to the next best."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.delete_flavor(unit, caller, name, match)


@router.get("/accelerators")
async def list_accelerators(
    caller: CatalogueReader, vendor: Annotated[str | None, Query(max_length=32)] = None
) -> Page[AcceleratorView]:
    """The whole accelerator catalogue, or one vendor's part of it; it is data of this version and comes in one page."""
    return Page[AcceleratorView](
        items=[
            AcceleratorView.model_validate(asdict(entry))
            for entry in load_catalogue()
            if vendor in (None, entry.vendor)
        ]
    )
