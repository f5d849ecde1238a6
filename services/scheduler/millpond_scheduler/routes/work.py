"""Routes for agents: polling for orders, reporting, pushing logs. A node token reaches its own node's rows only."""

import asyncio

from fastapi import APIRouter, Request

from millpond_contracts.bodies.work import PollAnswer, PollRequest, ReportAnswer, ReportBatch
from millpond_kernel.app import Kernel
from millpond_kernel.auth import NodeCaller
from millpond_kernel.border import ReadOnce
from millpond_kernel.db import SYSTEM
from millpond_scheduler.providers.bells import Waiters
from millpond_scheduler.usecases.reports import take_reports
from millpond_scheduler.usecases.work import NodeCall, node_call, read_orders, take_poll

router = APIRouter(prefix="/v1/work", tags=["work"], route_class=ReadOnce)


@router.post("/poll")
async def poll_work(request: Request, caller: NodeCaller, body: PollRequest) -> PollAnswer:
    """Renews the node's lease and answers with its orders, at once or when one comes within `wait_seconds`."""
    kernel: Kernel = request.app.state.kernel
    waiters: Waiters = request.app.state.waiters
    call = node_call(caller)
    event = waiters.expect(call.node)
    try:
        answer = None
        taken = await request.app.state.quiet_polls.ask((call, body))
        if taken is None:
            async with kernel.database.begin(SYSTEM) as unit:
                taken = await take_poll(unit, call, body)
                if not taken.is_at_peace:
                    is_patient = body.wait_seconds > 0
                    answer = await read_orders(unit, call.node, body.held, taken.lease_seconds, fresh_only=is_patient)
        if answer is None and body.wait_seconds > 0:
            answer = await _wait_for_orders(kernel, waiters, call, body, event, taken.lease_seconds)
        return answer or taken.nothing(body.wait_seconds)
    finally:
        waiters.forget(call.node, event)


async def _wait_for_orders(
    kernel: Kernel, waiters: Waiters, call: NodeCall, body: PollRequest, event: asyncio.Event, lease_seconds: float
) -> PollAnswer | None:
    """The orders that came within the wait. None = none came, a later poll of the node did, or this process ends."""
    deadline = asyncio.get_running_loop().time() + body.wait_seconds
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await event.wait()
        except TimeoutError:
            return None
        event.clear()
        if not waiters.is_current(call.node, event):
            return None
        async with kernel.database.begin(SYSTEM) as unit:
            answer = await read_orders(unit, call.node, body.held, lease_seconds, fresh_only=True)
        if answer is not None:
            return answer


@router.post("/reports")
async def report_work(request: Request, caller: NodeCaller, body: ReportBatch) -> ReportAnswer:
    """Takes facts about the node's allocations; those in `rejected` must not be sent again."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(SYSTEM) as unit:
        return await take_reports(unit, node_call(caller), body, request.app.state.quarantine)
