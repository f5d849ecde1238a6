"""Rows of logs: how far the kept text of each attempt reaches."""

from datetime import datetime

import asyncpg

from millpond_contracts.ids import AllocationId, JobId, TaskId
from millpond_kernel.uow import UnitOfWork


async def lock_log(unit: UnitOfWork, allocation: AllocationId) -> asyncpg.Record:
    """The log's row, made at the first chunk and locked, so that chunks are taken one after the other."""
    row = await unit.fetchrow(
        "INSERT INTO log AS l (allocation_id, tenant_id, task_id, attempt)"
        " SELECT id, tenant_id, task_id, attempt FROM allocation WHERE id = $1"
        " ON CONFLICT (allocation_id) DO UPDATE SET updated_at = clock_timestamp() RETURNING l.*",
        allocation,
    )
    assert row is not None, "the allocation was found before"
    return row


async def move_log(unit: UnitOfWork, allocation: AllocationId, next_offset: int, *, ended: bool, cut: bool) -> None:
    """Tells how far the log reaches now; `ended` and `cut` stay once they were true."""
    await unit.execute(
        "UPDATE log SET next_offset = $2, ended = ended OR $3, cut = cut OR $4, updated_at = clock_timestamp()"
        " WHERE allocation_id = $1",
        allocation,
        next_offset,
        ended,
        cut,
    )


async def find_attempt(unit: UnitOfWork, job: JobId, task: TaskId | None, attempt: int | None) -> asyncpg.Record | None:
    """The wanted attempt (None = the newest) of a task of the job (None = its first), with its log if it has one."""
    return await unit.fetchrow(
        "SELECT t.id AS task_id, coalesce(a.attempt, t.attempt) AS attempt, t.state AS task_state,"
        " t.attempt AS newest_attempt, a.id AS allocation_id, a.released_at, l.next_offset, l.ended, l.cut"
        " FROM task t LEFT JOIN allocation a ON a.job_id = t.job_id AND a.task_id = t.id"
        "  AND ($3::int IS NULL OR a.attempt = $3)"
        " LEFT JOIN log l ON l.allocation_id = a.id"
        " WHERE t.job_id = $1 AND ($2::uuid IS NULL OR t.id = $2) ORDER BY t.id, a.attempt DESC NULLS LAST LIMIT 1",
        job,
        task,
        attempt,
    )


async def list_old_logs(unit: UnitOfWork, before: datetime, limit: int) -> list[AllocationId]:
    """Logs whose last byte came before an instant."""
    rows = await unit.fetch(
        "SELECT allocation_id FROM log WHERE updated_at < $1 ORDER BY updated_at LIMIT $2", before, limit
    )
    return [AllocationId.of(row["allocation_id"]) for row in rows]


async def delete_logs(unit: UnitOfWork, allocations: list[AllocationId]) -> None:
    """Forgets logs whose text is gone."""
    await unit.execute("DELETE FROM log WHERE allocation_id = ANY($1)", allocations)
