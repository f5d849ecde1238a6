"""Routes of moves, for operators: what would have to move so that a waiting job starts; carrying that out."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from millpond_contracts.bodies.moves import MoveOrderSpec, MoveOrderView, MovePlanView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import JobId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.border import ReadOnce
from millpond_kernel.db import SYSTEM
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.defragmentation import MoveRules
from millpond_scheduler.store import jobs, moves
from millpond_scheduler.usecases.mirror import Mirror, refresh_mirror
from millpond_scheduler.usecases.moves import find_moves, read_question
from millpond_scheduler.usecases.moving import order_moves

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ReadOnce)


@router.get("/{job_id}/moves", name="plan_moves")
async def plan_moves(
    request: Request,
    _: OperatorCaller,
    job_id: JobId,
    max_moves: Annotated[int, Query(ge=1, le=64)] = 8,
    cool_down_seconds: Annotated[
        int, Query(ge=0, le=86_400, description="tasks that became active less than so long ago stay")
    ] = 600,
) -> MovePlanView:
    """Which running tasks would have to move so that a waiting job starts, and whether that is worth it.

    Only tasks whose jobs let a stopped task start again are moved, no part of a gang, and none that started a moment
    ago. Nothing is changed and nothing is held.
    """
    return await _plan(request, job_id, MoveRules(max_moves=max_moves, cool_down_seconds=cool_down_seconds))


@router.post("/{job_id}/moves", status_code=202, response_model=MoveOrderView, name="order_moves")
async def order(
    request: Request, caller: OperatorCaller, key: IdempotencyKey, job_id: JobId, body: MoveOrderSpec
) -> Response:
    """Carries out the moves of a plan that was seen, as long as they are still the same; `move-orders` tells how it is.

    The scheduler decides once more before anything is stopped: every place is kept before its task is asked to stop
    with its grace, all tasks or none.
    """
    kernel: Kernel = request.app.state.kernel
    told: MovePlanView | ProblemError
    try:
        rules = MoveRules(max_moves=body.max_moves, cool_down_seconds=body.cool_down_seconds)
        told = await _plan(request, job_id, rules)
    except ProblemError as error:
        told = error  # what was answered to this key before is answered again all the same

    async def work(unit: UnitOfWork) -> MoveOrderView:
        if isinstance(told, ProblemError):
            raise told
        return await order_moves(unit, caller, told, body)

    return await run_idempotent(request, kernel.database, caller, key, work, status=202)


@router.get("/{job_id}/move-orders")
async def list_move_orders(
    request: Request, caller: OperatorCaller, paging: Paging, job_id: JobId
) -> Page[MoveOrderView]:
    """What was ordered to move for a job, newest first, and what has become of each move."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        await jobs.get_job(unit, job_id)
        found = await moves.list_orders(unit, job_id, paging.after_uuid(), paging.limit + 1)
    return make_page(found, paging, lambda each: each, lambda each: each.move_order_id)


async def _plan(request: Request, job: JobId, rules: MoveRules) -> MovePlanView:
    kernel: Kernel = request.app.state.kernel
    mirror: Mirror = request.app.state.mirror
    async with mirror.lock:
        async with kernel.database.begin(SYSTEM) as unit:
            await refresh_mirror(unit, mirror)
        async with kernel.database.begin(SYSTEM) as unit:
            asked = await read_question(unit, job, rules)
        return await asyncio.to_thread(find_moves, mirror, asked)
