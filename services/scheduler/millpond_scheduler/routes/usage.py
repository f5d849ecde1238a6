"""Routes of usage: what virtual pools hold against their limits."""

from fastapi import APIRouter, Request

from millpond_contracts.bodies.shapes import Page
from millpond_contracts.bodies.verdicts import UsageLine
from millpond_contracts.ids import PoolId, TenantId, VirtualPoolId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.pagination import Paging, make_page
from millpond_scheduler.store import verdicts

router = APIRouter(prefix="/v1/usage", tags=["usage"])


@router.get("")
async def list_usage(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    virtual_pool: VirtualPoolId | None = None,
    tenant_id: TenantId | None = None,
    pool_id: PoolId | None = None,
) -> Page[UsageLine]:
    """Use of each limited resource; `limit_generation` is that of the limits which commits are held to now."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        found = await verdicts.list_usage(
            unit, paging.after_text(), paging.limit + 1, virtual_pool=virtual_pool, tenant=tenant_id, pool=pool_id
        )
    return make_page(found, paging, lambda item: item[1], lambda item: item[0])
