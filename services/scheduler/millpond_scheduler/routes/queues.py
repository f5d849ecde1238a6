"""Routes of queues: what waits in a virtual pool, in which order, and why."""

from fastapi import APIRouter, Request

from millpond_contracts.bodies.shapes import Page
from millpond_contracts.bodies.verdicts import QueueEntry
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import VirtualPoolId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.pagination import Paging, make_page
from millpond_kernel.problem import ProblemError
from millpond_scheduler.store import verdicts, views

router = APIRouter(prefix="/v1/queues", tags=["queues"])


@router.get("/{virtual_pool}")
async def list_queue(
    request: Request, caller: ReaderCaller, paging: Paging, virtual_pool: VirtualPoolId
) -> Page[QueueEntry]:
    """Jobs with waiting tasks in the order of decision, each with its reason."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        row = await views.find_virtual_pool(unit, virtual_pool)
        if row is None:
            raise ProblemError(ErrorCode.VIRTUAL_POOL_UNKNOWN, f"There is no virtual pool {virtual_pool}.")
        found = await verdicts.list_queue(
            unit, virtual_pool, views.policy_of(row), paging.after_int() or 0, paging.limit + 1
        )
    return make_page(found, paging, lambda entry: entry, lambda entry: entry.position)
