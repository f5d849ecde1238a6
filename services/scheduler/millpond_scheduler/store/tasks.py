"""Rows of tasks as people see them: each with its latest attempt and that attempt's allocation."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import TaskState, TaskView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import JobId, TaskId
from millpond_kernel.filters import Where
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store.allocations import AllocationRecord, allocation_record


def task_view(row: asyncpg.Record, allocation: AllocationRecord | None) -> TaskView:
    """The task of a row."""
    return TaskView(
        task_id=TaskId.of(row["id"]),
        job_id=JobId.of(row["job_id"]),
        group=row["group_name"],
        index=row["index"],
        attempt=row["attempt"],
        state=TaskState(row["state"]),
        state_since=row["state_since"],
        reason=None if row["reason"] is None else EndReason(row["reason"]),
        message=row["message"],
        exit_code=row["exit_code"],
        allocation=None if allocation is None else allocation.view(),
    )


async def list_tasks(
    unit: UnitOfWork,
    job: JobId,
    after: UUID | None,
    limit: int,
    *,
    states: Sequence[TaskState] = (),
    group: str | None = None,
) -> list[TaskView]:
    """Tasks of a job in the order in which they were made; no states wanted = any."""
    where = Where()
    where.add("job_id = {}", job)
    where.among("state", states)
    where.add("group_name = {}", group)
    where.after("id", after)
    rows = await unit.fetch(
        f"SELECT * FROM task{where.text()} ORDER BY id LIMIT {where.value(limit)}", *where.arguments
    )
    return await _with_allocations(unit, rows)


async def get_task(unit: UnitOfWork, task: TaskId) -> TaskView:
    """The task as the caller's scope may see it.

    Raises:
        ProblemError: 404 `scheduler.task.not_found`.
    """
    row = await unit.fetchrow("SELECT * FROM task WHERE id = $1", task)
    if row is None:
        raise ProblemError(ErrorCode.TASK_NOT_FOUND, f"There is no task {task}.")
    return (await _with_allocations(unit, [row]))[0]


async def _with_allocations(unit: UnitOfWork, rows: list[asyncpg.Record]) -> list[TaskView]:
    ids = [row["allocation_id"] for row in rows if row["allocation_id"] is not None]
    found = await unit.fetch("SELECT * FROM allocation WHERE id = ANY($1)", ids) if ids else []
    records = {row["id"]: allocation_record(row) for row in found}
    return [task_view(row, records.get(row["allocation_id"])) for row in rows]
