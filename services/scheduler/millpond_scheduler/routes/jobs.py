"""Routes of jobs: submit, list, read, cancel."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from millpond_contracts.bodies.jobs import (
    JobBatch,
    JobBatchView,
    JobDetail,
    JobSpec,
    JobState,
    JobView,
    TaskState,
    TaskView,
)
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.ids import JobId, ProjectId, TenantId, VirtualPoolId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import MemberCaller, ReaderCaller
from millpond_kernel.border import ReadOnce
from millpond_kernel.db import SYSTEM
from millpond_kernel.filters import LabelQuery, NameQuery, Spanning
from millpond_kernel.generation import etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.store import jobs, tasks
from millpond_scheduler.usecases.distances import list_placed
from millpond_scheduler.usecases.jobs import cancel_job, explain_job, read_job, submit_job, submit_jobs
from millpond_scheduler.usecases.mirror import Mirror

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ReadOnce)


@router.post("", status_code=201, response_model=JobView, name="submit_job")
async def submit(request: Request, caller: MemberCaller, key: IdempotencyKey, body: JobSpec) -> Response:
    """Submits a job. It is queued even when nothing could start it now; `explain` says what it waits for."""
    kernel: Kernel = request.app.state.kernel
    return await run_idempotent(
        request,
        kernel.database,
        caller,
        key,
        lambda unit: submit_job(unit, caller, body),
        location=lambda made: f"/v1/jobs/{made.job_id}",
    )


@router.post("/batch", status_code=201, response_model=JobBatchView)
async def submit_batch(request: Request, caller: MemberCaller, key: IdempotencyKey, body: JobBatch) -> Response:
    """Submits several jobs, all or none: one that is refused refuses the others with it."""
    kernel: Kernel = request.app.state.kernel
    return await run_idempotent(request, kernel.database, caller, key, lambda unit: submit_jobs(unit, caller, body))


@router.get("")
async def list_jobs(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    created: Spanning,
    state: Annotated[tuple[JobState, ...], Query(max_length=8, description="any of these")] = (),
    virtual_pool: VirtualPoolId | None = None,
    project: ProjectId | None = None,
    label: LabelQuery = (),
    tenant_id: TenantId | None = None,
    name: NameQuery = None,
    newest_first: bool = False,
) -> Page[JobView]:
    """Jobs by id, oldest first unless told otherwise; `since` and `until` are about when they were submitted."""
    kernel: Kernel = request.app.state.kernel
    wanted = jobs.JobFilter(state, virtual_pool, project, label, tenant_id, name, created)
    async with kernel.database.begin(caller.scope) as unit:
        rows = await jobs.list_jobs(unit, paging.after_uuid(), paging.limit + 1, wanted, is_newest_first=newest_first)
        groups = await jobs.count_tasks(unit, [row["id"] for row in rows])
    return make_page(rows, paging, lambda row: jobs.job_view(row, groups[JobId.of(row["id"])]), lambda row: row["id"])


@router.get("/{job_id}")
async def get_job(request: Request, response: Response, caller: ReaderCaller, job_id: JobId) -> JobDetail:
    """A job with its specification and its first 500 tasks; the others are listed by `/tasks`."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        detail = await read_job(unit, caller, job_id)
    response.headers["ETag"] = etag(detail.generation)
    return detail


@router.get("/{job_id}/explain", name="explain_job")
async def explain(request: Request, caller: ReaderCaller, job_id: JobId) -> Explanation:
    """Why a job waits: one dominant reason, nodes per reason, its limits, its place, and what would let it start.

    Of what runs it says how near the devices are to what was asked for.
    """
    kernel: Kernel = request.app.state.kernel
    mirror: Mirror = request.app.state.mirror
    async with kernel.database.begin(caller.scope) as unit:
        explanation = await explain_job(unit, job_id)
    # Nodes are nobody's: what they have is read in the system's scope, once it is known that the caller sees the job.
    async with kernel.database.begin(SYSTEM) as unit:
        placed = await list_placed(unit, job_id, mirror.policy.distance)
    return explanation.model_copy(update={"placed": placed})


@router.get("/{job_id}/tasks")
async def list_job_tasks(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    job_id: JobId,
    state: Annotated[tuple[TaskState, ...], Query(max_length=16, description="any of these")] = (),
    group: NameQuery = None,
) -> Page[TaskView]:
    """The job's tasks, each with its latest attempt."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        await jobs.get_job(unit, job_id)
        found = await tasks.list_tasks(unit, job_id, paging.after_uuid(), paging.limit + 1, states=state, group=group)
    return make_page(found, paging, lambda task: task, lambda task: task.task_id)


@router.post("/{job_id}/cancel", name="cancel_job")
async def cancel(request: Request, caller: MemberCaller, job_id: JobId) -> JobView:
    """Ends a job: what waits ends at once, what runs is stopped with its grace. Repeating it changes nothing."""
    kernel: Kernel = request.app.state.kernel
    bell: NodeBell = request.app.state.bell
    async with kernel.database.begin(SYSTEM) as unit:
        view, nodes = await cancel_job(unit, caller, job_id)
    await bell.ring(nodes)
    return view
