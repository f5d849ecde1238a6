"""Routes for agents: polling for orders, reporting, pushing logs. A node token reaches its own node's rows only."""

import asyncio

from fastapi import APIRouter, Request

from millpond_contracts.bodies.work import PollAnswer, PollRequest, ReportAnswer, ReportBatch
from millpond_kernel.app import Kernel
from millpond_kernel.auth import NodeCaller
from millpond_kernel.border import ReadOnce
from millpond_kernel.db import SYSTEM
from millpond_kernel.gathering import Gatherer
from millpond_kernel.problem import ProblemError
from millpond_scheduler.providers.bells import Waiters
from millpond_scheduler.usecases.work import NodeCall, OrdersAsked, node_call, read_orders, take_poll

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
                    asked = OrdersAsked(call.node, body.held, taken.lease_seconds, fresh_only=is_patient)
                    (answer,) = await read_orders(unit, [asked])
        if answer is None and body.wait_seconds > 0:
            asked = OrdersAsked(call.node, body.held, taken.lease_seconds, fresh_only=True)
            answer = await _wait_for_orders(request.app.state.orders, waiters, asked, body.wait_seconds, event)
        return answer or taken.nothing(body.wait_seconds)
    finally:
        waiters.forget(call.node, event)


async def _wait_for_orders(
    orders: Gatherer[OrdersAsked, PollAnswer | None],
    waiters: Waiters,
    asked: OrdersAsked,
    wait_seconds: float,
    event: asyncio.Event,
) -> PollAnswer | None:
    """The orders that came within the wait. None = none came, a later poll of the node did, or this process ends."""
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await event.wait()
        except TimeoutError:
            return None
        event.clear()
        if not waiters.is_current(asked.node, event):
            return None
        if (answer := await orders.ask(asked)) is not None:
            return answer


@router.post("/reports")
async def report_work(request: Request, caller: NodeCaller, body: ReportBatch) -> ReportAnswer:
    """Takes facts about the node's allocations; those in `rejected` must not be sent again."""
    reports: Gatherer[tuple[NodeCall, ReportBatch], ReportAnswer | ProblemError] = request.app.state.reports
    answer = await reports.ask((node_call(caller), body))
    if isinstance(answer, ProblemError):
        raise answer
    return answer
