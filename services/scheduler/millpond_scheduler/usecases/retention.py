"""Forgetting ended jobs with their tasks and allocations, once they are old (decision on retention)."""

from datetime import datetime

from millpond_kernel.uow import UnitOfWork

BATCH = 500


async def delete_ended_jobs(unit: UnitOfWork, before: datetime) -> int:
    """Forgets jobs that ended before an instant, with everything of them; at most one batch; returns how many."""
    rows = await unit.fetch("SELECT id FROM job WHERE ended_at < $1 ORDER BY id LIMIT $2", before, BATCH)
    ids = [row["id"] for row in rows]
    if ids:
        await unit.execute("DELETE FROM verdict WHERE job_id = ANY($1)", ids)
        await unit.execute(
            "DELETE FROM move WHERE job_id = ANY($1) OR order_id IN (SELECT id FROM move_order WHERE job_id = ANY($1))",
            ids,
        )
        await unit.execute("DELETE FROM move_order WHERE job_id = ANY($1)", ids)
        await unit.execute("DELETE FROM allocation WHERE job_id = ANY($1)", ids)
        await unit.execute("DELETE FROM task WHERE job_id = ANY($1)", ids)
        await unit.execute("DELETE FROM job WHERE id = ANY($1)", ids)
    return len(ids)
