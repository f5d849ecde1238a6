"""`/v1/devices`: every accelerator with its place and health."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from millpond_contracts.bodies.devices import DeviceListing
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import DeviceId, NodeId, PoolId
from millpond_contracts.resources import DeviceHealth
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.pagination import Paging, make_page
from millpond_registry.store.devices import list_devices as rows_of_devices
from millpond_registry.usecases import devices as usecases

router = APIRouter(prefix="/v1/devices", tags=["devices"])


@router.get("")
async def list_devices(
    request: Request,
    caller: OperatorCaller,
    paging: Paging,
    node_id: NodeId | None = None,
    pool_id: PoolId | None = None,
    flavor: Annotated[str | None, Query(max_length=64)] = None,
    health: DeviceHealth | None = None,
) -> Page[DeviceListing]:
    """Lists devices; one that its node no longer reports stays listed as lost."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_devices(
            unit,
            paging.after_uuid(),
            paging.limit + 1,
            node_id=node_id,
            pool_id=pool_id,
            flavor=flavor,
            health=health,
        )
    return make_page(rows, paging, usecases.device_listing, lambda row: DeviceId.of(row["id"]))


@router.delete("/{device_id}", status_code=204)
async def forget_device(request: Request, device_id: DeviceId, caller: OperatorCaller) -> None:
    """Forgets a device that was taken out of its node for good."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.forget_device(unit, caller, device_id)
