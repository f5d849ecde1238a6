"""Answers about jobs, queues and usage that are put together from several rows."""

from millpond_contracts.bodies.jobs import JobDetail, JobSpec
from millpond_contracts.ids import JobId
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import jobs, tasks

SHOWN_TASKS = 500
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
