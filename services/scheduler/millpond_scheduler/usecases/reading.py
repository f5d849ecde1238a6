"""Answers about jobs, queues and usage that are put together from several rows."""

from millpond_contracts.bodies.jobs import Explanation, JobDetail, JobSpec, JobState
from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import JobId, VirtualPoolId
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import jobs, tasks, verdicts, views

SHOWN_TASKS = 500
UNDECIDED = "undecided"
HIDDEN = "(shown to the job's tenant only)"


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
        group.model_copy(update={"run": group.run.model_copy(update={"command": (HIDDEN,), "env": {}})})
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
        )
    decided = await verdicts.find_decided_at(unit)
    as_of = max(verdict["as_of"], decided or verdict["as_of"])
    return Explanation(job_id=job, state=state, as_of=as_of, position=position, **verdict["body"])
