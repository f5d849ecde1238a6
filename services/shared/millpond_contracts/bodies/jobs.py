"""A job as a tenant submits it, and what the scheduler tells of jobs, their tasks and their logs."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, StrictInt, model_validator

from millpond_contracts.bodies.allocations import AllocationView, EndReason
from millpond_contracts.bodies.groups import MAX_GANG, GroupSpec
from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.dependencies import find_stages
from millpond_contracts.ids import JobId, PoolId, ProjectId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.quantities import Instant, Labels, Name


class JobKind(StrEnum):
    BATCH = "batch"


class RetryReason(StrEnum):
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    FAILED = "failed"


class RetrySpec(Incoming):
    """How often a task may be tried again, and after which ends."""

    max: StrictInt = Field(0, ge=0, le=100)
    on: Annotated[tuple[RetryReason, ...], Field(max_length=3)] = (RetryReason.NODE_LOST, RetryReason.PREEMPTED)


def _check_graph(groups: tuple[GroupSpec, ...]) -> tuple[GroupSpec, ...]:
    if any(group.after for group in groups):
        find_stages({group.name: group.after for group in groups})
    if len({frozenset(group.after) for group in groups if group.gang}) > 1:
        raise ValueError("after: the groups of a gang start together, so each of them waits for the same groups")
    return groups


class JobSpec(Incoming):
    """A job as it is submitted. `time_limit_seconds` bounds each task from the moment it is active."""

    name: Name
    virtual_pool: VirtualPoolId
    kind: JobKind = JobKind.BATCH
    priority: StrictInt = Field(50, ge=0, le=1000, description="higher goes first")
    groups: Annotated[tuple[GroupSpec, ...], Field(min_length=1, max_length=64), AfterValidator(_check_graph)]
    time_limit_seconds: StrictInt | None = Field(None, ge=1, le=31_536_000)
    retry: RetrySpec = Field(default_factory=RetrySpec)
    labels: Labels = Field(default_factory=dict)
    project_id: ProjectId | None = None

    @model_validator(mode="after")
    def _unique_groups(self) -> "JobSpec":
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError("group names must differ")
        if sum(group.count for group in self.groups) > 10_000:
            raise ValueError("a job has at most 10000 tasks")
        return self

    @model_validator(mode="after")
    def _packed_at_one_level(self) -> "JobSpec":
        for name, levels in (
            ("requires.pack", {group.requires.pack for group in self.groups} - {None}),
            ("prefers.pack", {group.prefers.pack for group in self.groups} - {None}),
        ):
            if len(levels) > 1:
                raise ValueError(f"the groups of a gang are packed together: {name} must name one level in all of them")
        return self

    @model_validator(mode="after")
    def _gang_of_bounded_size(self) -> "JobSpec":
        tasks = sum(group.count for group in self.groups if group.gang)
        if tasks > MAX_GANG:
            raise ValueError(f"a gang has at most {MAX_GANG} tasks, found {tasks}")
        return self


class JobBatch(Incoming):
    """Several jobs that are submitted all or none: at most 500, with at most 10000 tasks together."""

    jobs: Annotated[tuple[JobSpec, ...], Field(min_length=1, max_length=500)]

    @model_validator(mode="after")
    def _bounded_tasks(self) -> "JobBatch":
        tasks = sum(group.count for job in self.jobs for group in job.groups)
        if tasks > 10_000:
            raise ValueError(f"a batch has at most 10000 tasks, found {tasks}")
        return self


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskState(StrEnum):
    """States of one attempt of a task; a retry is a new attempt. `blocked` = other groups come first."""

    BLOCKED = "blocked"
    PENDING = "pending"
    BOUND = "bound"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"


class TaskView(Outgoing):
    """A task with its latest attempt."""

    task_id: TaskId
    job_id: JobId
    group: str
    index: int
    attempt: int
    state: TaskState
    state_since: Instant
    reason: EndReason | None
    message: str | None
    exit_code: int | None
    allocation: AllocationView | None


class GroupView(Outgoing):
    name: str
    count: int
    by_state: dict[str, int]


class JobView(Outgoing):
    """A job as it is. The command and the environment are shown only to the job's tenant, by this route alone.

    `reason` = why it ended. `pending_reason` = what its waiting tasks wait for, the `dominant` reason of `explain`
    (`dependencies` = other groups of the job); null when none waits, when nobody has looked yet, and in events.
    """

    job_id: JobId
    tenant_id: TenantId
    project_id: ProjectId | None
    virtual_pool_id: VirtualPoolId
    pool_id: PoolId
    name: str
    kind: JobKind
    priority: int
    state: JobState
    state_since: Instant
    reason: EndReason | None
    message: str | None
    pending_reason: str | None = None
    groups: list[GroupView]
    labels: dict[str, str]
    created_at: Instant
    started_at: Instant | None
    ended_at: Instant | None
    generation: int


class JobBatchView(Outgoing):
    """The jobs of a batch, in the order in which they were given."""

    jobs: list[JobView]


class JobDetail(JobView):
    """A job with its specification and its tasks."""

    spec: JobSpec
    tasks: list[TaskView]


class LogPage(Outgoing):
    """Log text of one attempt from `offset`; `ended` = nothing more will come."""

    task_id: TaskId
    attempt: int
    offset: int
    next_offset: int
    text: str
    ended: bool
    cut: bool = Field(description="the middle was left out because the log passed its limit")
