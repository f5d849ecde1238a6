"""Routes of plans: a dry run of a job with priced offers."""

import asyncio

from fastapi import APIRouter, Request

from millpond_contracts.bodies.jobs import JobSpec
from millpond_contracts.bodies.plans import PlanView
from millpond_kernel.app import Kernel
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.db import SYSTEM
from millpond_scheduler.usecases.mirror import Mirror, refresh_mirror
from millpond_scheduler.usecases.plans import make_plan, read_asked

router = APIRouter(prefix="/v1/plans", tags=["plans"])


@router.post("")
async def plan(request: Request, caller: ReaderCaller, body: JobSpec) -> PlanView:
    """Says where a job would start now and what it would cost. It changes nothing and holds nothing.

    The first offer is what the scheduler would do; further ones use one flavor of device alone.
    """
    kernel: Kernel = request.app.state.kernel
    mirror: Mirror = request.app.state.mirror
    async with kernel.database.begin(caller.scope) as unit:
        asked = await read_asked(unit, caller, body)
    async with mirror.lock:
        if not mirror.is_fresh() or body.virtual_pool not in mirror.shard.virtual_pools:
            async with kernel.database.begin(SYSTEM) as unit:
                await refresh_mirror(unit, mirror)
        return await asyncio.to_thread(make_plan, mirror, asked)
