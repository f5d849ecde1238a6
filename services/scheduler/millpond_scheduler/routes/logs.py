"""Logs: agents push chunks, people read pages or follow."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from millpond_contracts.bodies.jobs import LogPage
from millpond_contracts.bodies.work import LogAnswer, LogChunk
from millpond_contracts.ids import JobId, TaskId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import NodeCaller, ReaderCaller
from millpond_kernel.db import SYSTEM
from millpond_scheduler.providers.log_folder import LogStore
from millpond_scheduler.usecases.logs import find_attempt, read_page, take_chunk
from millpond_scheduler.usecases.work import node_call

router = APIRouter(prefix="/v1", tags=["logs"])

FOLLOW_SECONDS = 0.5


@router.post("/work/logs")
async def push_logs(request: Request, caller: NodeCaller, body: LogChunk) -> LogAnswer:
    """Takes bytes of one attempt's log; sending them again changes nothing."""
    kernel: Kernel = request.app.state.kernel
    store: LogStore = request.app.state.logs
    async with kernel.database.begin(SYSTEM) as unit:
        return await take_chunk(unit, store, node_call(caller), body)


@router.get(
    "/jobs/{job_id}/logs",
    name="read_job_logs",
    response_model=LogPage,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def read_logs(
    request: Request,
    caller: ReaderCaller,
    job_id: JobId,
    task: Annotated[TaskId | None, Query(description="default: the job's first task")] = None,
    task_id: Annotated[TaskId | None, Query(include_in_schema=False)] = None,
    attempt: Annotated[int | None, Query(ge=1, le=1000, description="default: the newest")] = None,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    follow: Annotated[bool, Query(description="stream the text as text/plain until it ends")] = False,
) -> Response:
    """A page of one task's log, or with `follow=true` its text as it comes."""
    kernel: Kernel = request.app.state.kernel
    store: LogStore = request.app.state.logs
    async with kernel.database.begin(caller.scope) as unit:
        found = await find_attempt(unit, job_id, task or task_id, attempt)
    if not follow:
        page = await read_page(store, found, offset)
        return Response(page.model_dump_json(), media_type="application/json")
    # The attempt is fixed now: a retry that starts meanwhile has a log of its own.
    wanted = attempt or (found.attempt if found.allocation is not None else None)
    return StreamingResponse(
        kernel.rates.streamed(caller, _follow(request, job_id, found.task, wanted, offset)),
        media_type="text/plain; charset=utf-8",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _follow(
    request: Request, job: JobId, task: TaskId, attempt: int | None, offset: int
) -> AsyncGenerator[str, None]:
    kernel: Kernel = request.app.state.kernel
    store: LogStore = request.app.state.logs
    while True:
        # Again and again: the key may be revoked or expire while its log is followed.
        caller = await kernel.authenticator.authenticate(request.headers.get("authorization"))
        async with kernel.database.begin(caller.scope) as unit:
            found = await find_attempt(unit, job, task, attempt)
        page = await read_page(store, found, offset)
        if page.text:
            yield page.text
        moved = page.next_offset > offset
        offset = page.next_offset
        if page.ended or kernel.stopping.is_set():
            return
        if not moved:
            await asyncio.sleep(FOLLOW_SECONDS)
