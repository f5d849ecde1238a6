"""Rows of jobs and of their tasks. A job's row is the lock of its tasks and allocations: it is taken before them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.groups import GroupSpec
from millpond_contracts.bodies.jobs import GroupView, JobKind, JobSpec, JobState, JobView, TaskState
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import JobId, PoolId, ProjectId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_kernel.filters import EVER, Span, Where
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.requests import measure_work

# What a job waits for when all that waits of it waits for other groups of it.
DEPENDENCIES = "dependencies"

_SUBMIT = """
WITH x AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::int[],
        $9::text[], $10::text[]) AS u(i, t, p, v, o, n, k, y, l, s)
), j AS (
    INSERT INTO job (id, tenant_id, project_id, virtual_pool_id, pool_id, name, kind, priority, labels, spec, state,
        generation)
    SELECT i, t, p, v, o, n, k, y, l::jsonb, s::jsonb, 'pending', 1 FROM x ORDER BY i RETURNING id, created_at
), t AS (
    INSERT INTO task (id, job_id, tenant_id, virtual_pool_id, group_name, index, attempt, priority, queued_at, state,
        work)
    SELECT a.id, x.i, x.t, x.v, a.g, a.n, 1, x.y, j.created_at, a.s, a.w
    FROM unnest($11::uuid[], $12::uuid[], $13::text[], $14::int[], $15::bigint[], $16::text[]) AS a(id, job, g, n, w, s)
    JOIN x ON x.i = a.job JOIN j ON j.id = a.job ORDER BY a.id
), c AS (
    INSERT INTO change (kind, object_id) SELECT 'task', unnest($11::uuid[])
)
SELECT id, created_at FROM j
"""


class NewJob(NamedTuple):
    """A job to be stored, beside its specification."""

    id: JobId
    tenant: TenantId
    project: ProjectId | None
    pool: PoolId
    spec: JobSpec


async def insert_jobs(unit: UnitOfWork, new: Sequence[NewJob]) -> dict[JobId, datetime]:
    """Stores jobs with their waiting tasks and tells the leader; the instants of their creation."""
    places = [
        (each.id, group.name, index, work, first_state(group).value)
        for each in new
        for group in each.spec.groups
        for work in (work_of(each.spec, group),)
        for index in range(group.count)
    ]
    rows = await unit.fetch(
        _SUBMIT,
        [each.id for each in new],
        [each.tenant for each in new],
        [each.project for each in new],
        [each.spec.virtual_pool for each in new],
        [each.pool for each in new],
        [each.spec.name for each in new],
        [each.spec.kind.value for each in new],
        [each.spec.priority for each in new],
        [json.dumps(each.spec.labels) for each in new],
        [_write_spec(each.spec) for each in new],
        TaskId.new_many(len(places)),
        *zip(*places, strict=True),
    )
    return {JobId.of(row["id"]): row["created_at"] for row in rows}


def _write_spec(spec: JobSpec) -> str:
    """The specification as JSON; without `after` where no group waits, so that the version before reads it too."""
    waits = any(group.after for group in spec.groups)
    return spec.model_dump_json(exclude=None if waits else {"groups": {"__all__": {"after"}}})


def first_state(group: GroupSpec) -> TaskState:
    """The state in which the tasks of a group begin."""
    return TaskState.BLOCKED if group.after else TaskState.PENDING


def work_of(spec: JobSpec, group: GroupSpec) -> int | None:
    """How much a task of a group may hold at most, a gang as a whole, as `measure_work` counts it."""
    # A slice by memory alone is counted as a whole device: what it takes depends on the device that it gets.
    milli = sum(device.count * (device.milli or WHOLE_DEVICE_MILLI) for device in group.resources.devices)
    return measure_work(spec.time_limit_seconds, milli, group.count if group.gang else 1)


def job_view(row: asyncpg.Record, groups: Iterable[GroupView]) -> JobView:
    """The job of a row."""
    shown = list(groups)
    pending_reason = None
    if any(group.by_state.get(TaskState.PENDING.value) for group in shown):
        # The leader takes a verdict back a moment after the last task was given its node.
        pending_reason = row.get("pending_reason")
    elif "pending_reason" in row and any(group.by_state.get(TaskState.BLOCKED.value) for group in shown):
        pending_reason = DEPENDENCIES
    return JobView(
        job_id=JobId.of(row["id"]),
        tenant_id=TenantId.of(row["tenant_id"]),
        project_id=None if row["project_id"] is None else ProjectId.of(row["project_id"]),
        virtual_pool_id=VirtualPoolId.of(row["virtual_pool_id"]),
        pool_id=PoolId.of(row["pool_id"]),
        name=row["name"],
        kind=JobKind(row["kind"]),
        priority=row["priority"],
        state=JobState(row["state"]),
        state_since=row["state_since"],
        reason=None if row["reason"] is None else EndReason(row["reason"]),
        message=row["message"],
        pending_reason=pending_reason,
        groups=shown,
        labels=row["labels"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        generation=row["generation"],
    )


# Everything of a job but its specification, which may be large and is never shown by lists.
COLUMNS = (
    "id, tenant_id, project_id, virtual_pool_id, pool_id, name, kind, priority, labels, state, state_since, reason,"
    " message, cancel_requested, created_at, started_at, ended_at, generation"
)

# What the job's waiting tasks wait for, as the leader saw it last.
_PENDING_REASON = (
    "CASE WHEN state IN ('pending', 'running')"
    " THEN (SELECT v.dominant FROM verdict v WHERE v.job_id = job.id) END AS pending_reason"
)


async def get_job(unit: UnitOfWork, job: JobId) -> asyncpg.Record:
    """The job's row with its specification, as the caller's scope may see it.

    Raises:
        ProblemError: 404 `scheduler.job.not_found`.
    """
    row = await unit.fetchrow(f"SELECT *, {_PENDING_REASON} FROM job WHERE id = $1", job)
    if row is None:
        raise ProblemError(ErrorCode.JOB_NOT_FOUND, f"There is no job {job}.")
    return row


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list shows; empty and None = any. Every label wanted must be there."""

    states: Sequence[JobState] = ()
    virtual_pool: VirtualPoolId | None = None
    project: ProjectId | None = None
    labels: Sequence[str] = ()
    tenant: TenantId | None = None
    name: str | None = None
    created: Span = EVER

    def where(self) -> Where:
        """The conditions."""
        where = Where()
        where.among("state", self.states)
        where.add("virtual_pool_id = {}", self.virtual_pool)
        where.add("project_id = {}", self.project)
        where.labelled("labels", self.labels)
        where.add("tenant_id = {}", self.tenant)
        where.add("name = {}", self.name)
        where.within("created_at", self.created, "id")
        return where


async def list_jobs(
    unit: UnitOfWork, after: UUID | None, limit: int, wanted: JobFilter, *, is_newest_first: bool = False
) -> list[asyncpg.Record]:
    """Jobs by id, newest last or first, each with what its waiting tasks wait for."""
    where = wanted.where()
    where.after("id", after, is_descending=is_newest_first)
    order = "DESC" if is_newest_first else "ASC"
    return await unit.fetch(
        f"SELECT {COLUMNS}, {_PENDING_REASON} FROM job{where.text()} ORDER BY id {order} LIMIT {where.value(limit)}",
        *where.arguments,
    )


async def lock_jobs(unit: UnitOfWork, jobs: Iterable[UUID]) -> dict[JobId, asyncpg.Record]:
    """The jobs' rows, locked in the order of their ids, without their specifications."""
    rows = await unit.fetch(
        f"SELECT {COLUMNS}, spec->'retry' AS retry FROM job WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE",
        list(jobs),
    )
    return {JobId.of(row["id"]): row for row in rows}


class JobTurn(NamedTuple):
    """The state that a job takes."""

    job: JobId
    state: JobState
    reason: EndReason | None
    message: str | None
    started_at: datetime | None
    ended_at: datetime | None


async def turn_jobs(unit: UnitOfWork, turned: Sequence[JobTurn], now: datetime) -> list[asyncpg.Record]:
    """Writes the states that locked jobs take; their rows, without their specifications."""
    if not turned:
        return []
    return await unit.fetch(
        "UPDATE job SET state = x.s, state_since = $7, reason = x.r, message = x.m, started_at = x.b, ended_at = x.e,"
        " generation = generation + 1"
        " FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[])"
        f" AS x(k, s, r, m, b, e) WHERE id = x.k RETURNING {COLUMNS}",
        [one.job for one in turned],
        [one.state.value for one in turned],
        [None if one.reason is None else one.reason.value for one in turned],
        [one.message for one in turned],
        [one.started_at for one in turned],
        [one.ended_at for one in turned],
        now,
    )


async def count_tasks(unit: UnitOfWork, jobs: Sequence[UUID]) -> dict[JobId, list[GroupView]]:
    """The groups of each job with the number of their tasks by state."""
    rows = await unit.fetch(
        "SELECT job_id, group_name, state, count(*) AS n FROM task WHERE job_id = ANY($1) GROUP BY 1, 2, 3"
        " ORDER BY 1, 2, 3",
        jobs,
    )
    found: dict[JobId, dict[str, dict[str, int]]] = {}
    for row in rows:
        found.setdefault(JobId.of(row["job_id"]), {}).setdefault(row["group_name"], {})[row["state"]] = row["n"]
    return {
        job: [GroupView(name=name, count=sum(states.values()), by_state=states) for name, states in groups.items()]
        for job, groups in found.items()
    }


async def list_waiting(unit: UnitOfWork, tasks: Sequence[UUID] | None) -> list[asyncpg.Record]:
    """Waiting tasks (None = all) with what the leader needs of their jobs, but their jobs' specifications."""
    return await unit.fetch(
        "SELECT t.id, t.job_id, t.tenant_id, t.virtual_pool_id, t.group_name, t.index, t.attempt, t.priority,"
        " t.queued_at, t.failed_on, t.work FROM task t WHERE t.state = 'pending'"
        " AND ($1::uuid[] IS NULL OR t.id = ANY($1))",
        tasks,
    )


async def list_waiting_ids(unit: UnitOfWork) -> list[UUID]:
    """The ids of all waiting tasks."""
    return [row["id"] for row in await unit.fetch("SELECT id FROM task WHERE state = 'pending'")]


async def list_long_waiting(unit: UnitOfWork, seconds: int, jobs: int, tasks: int) -> list[UUID]:
    """Tasks that have waited so long: of so many jobs, the first in the order of decision, so many of each group."""
    rows = await unit.fetch(
        "WITH aged AS (SELECT job_id FROM task WHERE state = 'pending'"
        "  AND queued_at < clock_timestamp() - make_interval(secs => $1)"
        "  GROUP BY job_id ORDER BY -max(priority), min(queued_at), job_id LIMIT $2)"
        " SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY job_id, group_name ORDER BY index) AS place"
        "  FROM task JOIN aged USING (job_id) WHERE state = 'pending') AS t WHERE place <= $3",
        float(seconds),
        jobs,
        tasks,
    )
    return [row["id"] for row in rows]


async def list_specs(unit: UnitOfWork, jobs: Sequence[UUID]) -> list[asyncpg.Record]:
    """What the leader keeps of jobs: names, labels, and groups without commands and environments as a JSON text."""
    return await unit.fetch(
        "SELECT id, pool_id, project_id, name, labels::text, spec->'time_limit_seconds' AS time_limit_seconds,"
        " (SELECT jsonb_agg((g - 'run') || jsonb_build_object('image', g->'run'->'image',"
        " 'simulated', coalesce(jsonb_typeof(g->'run'->'simulate') = 'object', false)))"
        "  FROM jsonb_array_elements(spec->'groups') AS g)::text AS groups FROM job WHERE id = ANY($1)",
        jobs,
    )


async def count_recent_requests(
    unit: UnitOfWork, jobs: int, limit: int, pool: PoolId | None = None
) -> list[asyncpg.Record]:
    """What the tasks of the newest jobs (None = of all pools) asked for, those with devices first, most frequent first:
    `pool_id`, `asked` (a group as a JSON text, without what is not asked of a node) and `tasks`."""
    return await unit.fetch(
        "SELECT pool_id, asked::text AS asked, sum(tasks)::bigint AS tasks FROM ("
        "  SELECT pool_id, (g->>'count')::bigint AS tasks, jsonb_build_object("
        "   'resources', g->'resources', 'requires', g->'requires', 'tolerations', g->'tolerations',"
        "   'image', g->'run'->'image',"
        "   'simulated', coalesce(jsonb_typeof(g->'run'->'simulate') = 'object', false)) AS asked"
        "  FROM (SELECT pool_id, spec FROM job WHERE $3::uuid IS NULL OR pool_id = $3 ORDER BY id DESC LIMIT $1) AS j,"
        "   jsonb_array_elements(spec->'groups') AS g) AS listed"
        " GROUP BY pool_id, asked"
        " ORDER BY asked->'resources'->'devices'->0 IS NULL, tasks DESC, pool_id, asked LIMIT $2",
        jobs,
        limit,
        pool,
    )


async def bind_tasks(
    unit: UnitOfWork, tasks: Sequence[UUID], attempts: Sequence[int], allocations: Sequence[UUID], now: datetime
) -> int:
    """Moves waiting attempts to bound; returns how many of them still waited."""
    return await unit.execute(
        "UPDATE task t SET state = 'bound', state_since = $4, allocation_id = x.a, reason = NULL, message = NULL,"
        " exit_code = NULL FROM unnest($1::uuid[], $2::int[], $3::uuid[]) AS x(id, n, a)"
        " WHERE t.id = x.id AND t.attempt = x.n AND t.state = 'pending'",
        tasks,
        attempts,
        allocations,
        now,
    )
