"""Routes of allocations: who holds what, and who held it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from millpond_contracts.bodies.allocations import AllocationState, AllocationView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import AllocationId, JobId, NodeId, ProjectId, TenantId, VirtualPoolId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.filters import LabelQuery, Spanning
from millpond_kernel.generation import etag
from millpond_kernel.pagination import Paging, make_page
from millpond_scheduler.store import allocations

router = APIRouter(prefix="/v1/allocations", tags=["allocations"])


@router.get("")
async def list_allocations(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    bound: Spanning,
    job_id: JobId | None = None,
    node_id: NodeId | None = None,
    virtual_pool: VirtualPoolId | None = None,
    state: Annotated[tuple[AllocationState, ...], Query(max_length=8, description="any of these")] = (),
    project: ProjectId | None = None,
    label: LabelQuery = (),
    tenant_id: TenantId | None = None,
) -> Page[AllocationView]:
    """Allocations by id, oldest first; `since` and `until` are about when they were bound."""
    kernel: Kernel = request.app.state.kernel
    wanted = allocations.AllocationFilter(job_id, node_id, virtual_pool, state, project, label, tenant_id, bound)
    async with kernel.database.begin(caller.scope) as unit:
        found = await allocations.list_allocations(unit, paging.after_uuid(), paging.limit + 1, wanted)
    return make_page(found, paging, lambda record: record.view(), lambda record: record.id)


@router.get("/{allocation_id}")
async def get_allocation(
    request: Request, response: Response, caller: ReaderCaller, allocation_id: AllocationId
) -> AllocationView:
    """One allocation."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        record = await allocations.get_allocation(unit, allocation_id)
    response.headers["ETag"] = etag(record.generation)
    return record.view()
