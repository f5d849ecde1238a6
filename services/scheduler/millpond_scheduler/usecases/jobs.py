"""Jobs: submitting, reading, explaining and cancelling them."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from millpond_contracts.bodies.allocations import AllocationState, EndReason
from millpond_contracts.bodies.jobs import GroupView, JobBatch, JobDetail, JobSpec, JobState, JobView
from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.scheduler import JobSubmitted
from millpond_contracts.ids import JobId, NodeId, PoolId, ProjectId, TenantId, VirtualPoolId
from millpond_kernel.audit import audit
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork, WrittenEvent
from millpond_scheduler.domain.states import is_final
from millpond_scheduler.store import jobs, tasks, verdicts, views
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.store.jobs import NewJob
from millpond_scheduler.usecases.dependencies import describe, list_dependencies
from millpond_scheduler.usecases.lives import Lives, lock_lives, write_lives

SHOWN_TASKS = 500
UNDECIDED = "undecided"
HIDDEN = "(shown to the job's tenant only)"


async def submit_job(unit: UnitOfWork, caller: Principal, spec: JobSpec) -> JobView:
    """Stores a job; it queues even if nothing could ever start it now, and `explain` says why.

    Raises:
        ProblemError: 404 for a virtual pool or a project that this tenant does not have.
    """
    return (await _submit(unit, caller, [spec])).jobs[0]


class SubmittedJobs(NamedTuple):
    """Jobs as they were stored, each also as the JSON that its event, its audit row and the answer hold."""

    jobs: list[JobView]
    written: list[str]

    def model_dump_json(self) -> str:
        """As `JobBatchView` is written."""
        return f'{{"jobs":[{",".join(self.written)}]}}'


async def submit_jobs(unit: UnitOfWork, caller: Principal, batch: JobBatch) -> SubmittedJobs:
    """Stores several jobs in one transaction.

    Raises:
        ProblemError: 404 for a virtual pool or a project that this tenant does not have; then none is stored.
    """
    return await _submit(unit, caller, batch.jobs)


async def _submit(unit: UnitOfWork, caller: Principal, specs: Sequence[JobSpec]) -> SubmittedJobs:
    named = dict.fromkeys(each.virtual_pool for each in specs)
    shares = {key: await _get_share(unit, key) for key in named}
    owners = {(each.project_id, shares[each.virtual_pool][0]): each for each in specs}
    projects = {key: await find_project(unit, caller, each, key[1]) for key, each in owners.items()}
    new = []
    for key, spec in zip(JobId.new_many(len(specs)), specs, strict=True):
        tenant, pool = shares[spec.virtual_pool]
        new.append(NewJob(key, tenant, projects[spec.project_id, tenant], pool, spec))
    created = await jobs.insert_jobs(unit, new)
    made = [_view(each, created[each.id]) for each in new]
    written = [view.model_dump_json() for view in made]
    for view, text in zip(made, written, strict=True):
        subject = str(view.job_id)
        # A test holds it to the event's model.
        event = WrittenEvent(
            JobSubmitted.type, subject, view.tenant_id, view.generation, f'{{"job":{text}}}', view.created_at
        )
        unit.emit_written([event])
        audit(unit, caller, "job.submit", subject, after=text)
    return SubmittedJobs(made, written)


async def _get_share(unit: UnitOfWork, key: VirtualPoolId) -> tuple[TenantId, PoolId]:
    virtual_pool = await views.find_virtual_pool(unit, key)
    if virtual_pool is None:
        raise ProblemError(ErrorCode.VIRTUAL_POOL_UNKNOWN, f"There is no virtual pool {key}.")
    return TenantId.of(virtual_pool["tenant_id"]), PoolId.of(virtual_pool["pool_id"])


def _view(new: NewJob, created: datetime) -> JobView:
    spec = new.spec
    return JobView(
        job_id=new.id,
        tenant_id=new.tenant,
        project_id=new.project,
        virtual_pool_id=spec.virtual_pool,
        pool_id=new.pool,
        name=spec.name,
        kind=spec.kind,
        priority=spec.priority,
        state=JobState.PENDING,
        state_since=created,
        reason=None,
        message=None,
        groups=[
            GroupView(name=g.name, count=g.count, by_state={jobs.first_state(g).value: g.count}) for g in spec.groups
        ],
        labels=spec.labels,
        created_at=created,
        started_at=None,
        ended_at=None,
        generation=1,
    )


async def find_project(unit: UnitOfWork, caller: Principal, spec: JobSpec, tenant: TenantId) -> ProjectId | None:
    """The project a job counts for: that of a bound key, else the one it names.

    Raises:
        ProblemError: 404 for a project that this tenant, or this key, does not have.
    """
    named = spec.project_id
    if caller.project_id is not None and named in (None, caller.project_id):
        return caller.project_id
    if named is None:
        return None
    known = await unit.fetchval(
        "SELECT true FROM project_view WHERE id = $1 AND tenant_id = $2 AND NOT deleted", named, tenant
    )
    if caller.project_id is not None or not known:
        raise ProblemError(ErrorCode.PROJECT_NOT_FOUND, f"There is no project {named}.")
    return named


async def read_job(unit: UnitOfWork, caller: Principal, job: JobId) -> JobDetail:
    """A job with its specification; command and environment are for its tenant alone.

    Raises:
        ProblemError: 404 `scheduler.job.not_found`.
    """
    row = await jobs.get_job(unit, job)
    groups = await jobs.count_tasks(unit, [job])
    spec = JobSpec.model_validate(row["spec"])
    return JobDetail(
        **dict(jobs.job_view(row, groups[job])),
        spec=spec if caller.tenant_id is not None else _without_commands(spec),
        tasks=await tasks.list_tasks(unit, job, None, SHOWN_TASKS),
    )


def _without_commands(spec: JobSpec) -> JobSpec:
    groups = tuple(
        group.model_copy(
            update={"run": group.run.model_copy(update={"command": (HIDDEN,) if group.run.command else (), "env": {}})}
        )
        for group in spec.groups
    )
    return spec.model_copy(update={"groups": groups})


async def explain_job(unit: UnitOfWork, job: JobId) -> Explanation:
    """Why a job waits, as the leader saw it last; its place in the queue is as of now.

    Raises:
        ProblemError: 404 `scheduler.job.not_found`.
    """
    row = await jobs.get_job(unit, job)
    state, now = JobState(row["state"]), await unit.fetchval("SELECT clock_timestamp()")
    virtual_pool = await views.find_virtual_pool(unit, VirtualPoolId.of(row["virtual_pool_id"]))
    policy = QueuePolicy.PRIORITY if virtual_pool is None else views.policy_of(virtual_pool)
    position = await verdicts.find_position(unit, job, VirtualPoolId.of(row["virtual_pool_id"]), policy)
    dependencies = await list_dependencies(unit, job)
    if position is None and dependencies:
        return Explanation(
            job_id=job,
            state=state,
            as_of=now,
            dominant=jobs.DEPENDENCIES,
            message=describe(dependencies),
            dependencies=dependencies,
        )
    if position is None:
        # Nothing of it waits: it runs, it was just given a node, or it has ended.
        message = row["message"] or f"no task of the job waits; the job is {state.value}"
        return Explanation(job_id=job, state=state, as_of=now, dominant=state.value, message=message)
    verdict = await verdicts.find_verdict(unit, job)
    if verdict is None:
        return Explanation(
            job_id=job,
            state=state,
            as_of=now,
            dominant=UNDECIDED,
            message="the scheduler has not looked at this job yet",
            position=position,
            dependencies=dependencies,
        )
    decided = await verdicts.find_decided_at(unit)
    as_of = max(verdict["as_of"], decided or verdict["as_of"])
    return Explanation(
        job_id=job, state=state, as_of=as_of, position=position, dependencies=dependencies, **verdict["body"]
    )


async def cancel_job(unit: UnitOfWork, caller: Principal, job: JobId) -> tuple[JobView, set[NodeId]]:
    """Ends a job: what waits ends at once, what runs is ordered to stop; returns the nodes that have an order.

    Opened in the system's scope, because counters of nodes may change; the tenant is compared here.

    Raises:
        ProblemError: 404 unknown or another tenant's, 409 `scheduler.job.ended`.
    """
    ids = [
        row["id"]
        for row in await unit.fetch("SELECT id FROM allocation WHERE job_id = $1 AND state <> 'released'", job)
    ]
    lives = await lock_lives(unit, ids, [job])
    lock = lives.jobs.get(job)
    if lock is None or caller.tenant_id not in (None, lock.row["tenant_id"]):
        raise ProblemError(ErrorCode.JOB_NOT_FOUND, f"There is no job {job}.")
    if is_final(JobState(lock.row["state"])):
        raise ProblemError(ErrorCode.JOB_ENDED, f"Job {job} is {lock.row['state']} already.")
    now = await unit.fetchval("SELECT clock_timestamp()")
    if not lock.cancel_requested:
        lives = await _lock_rest(unit, lives, job)
        lock = lives.jobs[job]
        lock.cancel_requested = lock.touched = True
        await unit.execute("UPDATE job SET cancel_requested = true WHERE id = $1", job)
        ended = await unit.fetch(
            "UPDATE task SET state = 'cancelled', state_since = $2, reason = 'cancelled' WHERE job_id = $1"
            " AND state IN ('pending', 'blocked') RETURNING id",
            job,
            now,
        )
        await note_changes(unit, ChangeKind.TASK, [row["id"] for row in ended])
        for life in lives.by_id.values():
            life.request_stop(EndReason.CANCELLED, now)
        await write_lives(unit, lives, now)
        audit(unit, caller, "job.cancel", str(job))
    row = await jobs.get_job(unit, job)
    groups = await jobs.count_tasks(unit, [job])
    return jobs.job_view(row, groups[job]), _nodes_with_orders(lives)


async def _lock_rest(unit: UnitOfWork, lives: Lives, job: UUID) -> Lives:
    """The same with allocations that were bound before the job's lock was held; nothing more can come after it."""
    rows = await unit.fetch("SELECT id FROM allocation WHERE job_id = $1 AND state <> 'released'", job)
    ids = [row["id"] for row in rows]
    return lives if set(ids) <= set(lives.by_id) else await lock_lives(unit, ids, [job])


def _nodes_with_orders(lives: Lives) -> set[NodeId]:
    return {life.record.node for life in lives.by_id.values() if life.record.state is AllocationState.RELEASING}
