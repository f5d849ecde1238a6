"""Rows that answer why something waits: verdicts, places in the queue, use against limits."""

from collections.abc import Mapping
from datetime import datetime

import asyncpg

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.bodies.verdicts import QueueEntry, UsageLine
from millpond_contracts.ids import JobId, PoolId, TenantId, VirtualPoolId
from millpond_kernel.filters import Where
from millpond_kernel.uow import UnitOfWork

# What comes before age in the order of a virtual pool's policy, as SQL: the same as the domain's `order.key_of`.
_FIRST = {
    QueuePolicy.FIFO: "0::bigint",
    QueuePolicy.PRIORITY: "-{t}.priority",
    QueuePolicy.SHORTEST_JOB_FIRST: "coalesce({t}.work, 1::bigint << 62)",
}

_USAGE_KEY = "concat_ws('/', u.virtual_pool_id::text, resource, flavor)"


async def find_verdict(unit: UnitOfWork, job: JobId) -> asyncpg.Record | None:
    """The job's verdict as the leader wrote it last; None before its first look."""
    return await unit.fetchrow("SELECT body, as_of FROM verdict WHERE job_id = $1", job)


async def find_decided_at(unit: UnitOfWork) -> datetime | None:
    """When the leader last confirmed all verdicts."""
    decided: datetime | None = await unit.fetchval("SELECT decided_at FROM shard_state WHERE shard = 0")
    return decided


async def find_position(unit: UnitOfWork, job: JobId, virtual_pool: VirtualPoolId, policy: QueuePolicy) -> int | None:
    """The job's place among the waiting jobs of its virtual pool, 1 = next; None when none of its tasks waits.

    With fair share it depends on what each project holds: then it is the place that the leader saw last.
    """
    if policy is QueuePolicy.FAIR_SHARE:
        seen: int | None = await unit.fetchval(
            "SELECT coalesce(v.position, (SELECT count(DISTINCT job_id) FROM task"
            "   WHERE virtual_pool_id = $2 AND state = 'pending'))"
            " FROM task t LEFT JOIN verdict v USING (job_id) WHERE t.job_id = $1 AND t.state = 'pending' LIMIT 1",
            job,
            virtual_pool,
        )
        return seen
    mine, other = (f"({_FIRST[policy].format(t=t)}, {t}.queued_at, {t}.id)" for t in ("m", "t"))
    position: int | None = await unit.fetchval(
        f"SELECT 1 + (SELECT count(DISTINCT t.job_id) FROM task t WHERE t.virtual_pool_id = $2 AND t.state = 'pending'"
        f" AND t.job_id <> $1 AND {other} < {mine})"
        " FROM task m WHERE m.job_id = $1 AND m.state = 'pending'"
        f" ORDER BY {mine} LIMIT 1",
        job,
        virtual_pool,
    )
    return position


async def write_positions(unit: UnitOfWork, positions: Mapping[JobId, int]) -> None:
    """Notes the places of jobs whose order only the leader knows; those without one lose theirs."""
    await unit.execute(
        "UPDATE verdict v SET position = x.p FROM (SELECT w.job_id AS j, y.p FROM verdict w"
        " LEFT JOIN unnest($1::uuid[], $2::int[]) AS y(j, p) ON y.j = w.job_id"
        " WHERE w.position IS DISTINCT FROM y.p) AS x WHERE v.job_id = x.j",
        list(positions),
        list(positions.values()),
    )


async def list_queue(
    unit: UnitOfWork, virtual_pool: VirtualPoolId, policy: QueuePolicy, after: int, limit: int
) -> list[QueueEntry]:
    """Waiting jobs of a virtual pool in order, after so many places."""
    first = "v.position, -q.priority" if policy is QueuePolicy.FAIR_SHARE else _FIRST[policy].format(t="q")
    rows = await unit.fetch(
        "SELECT j.id, j.name, j.priority, j.created_at, q.pending, v.dominant, v.message FROM ("
        "  SELECT job_id, count(*) AS pending, max(priority) AS priority, min(queued_at) AS queued_at,"
        "  min(work) AS work, min(id::text) AS id"
        "  FROM task WHERE virtual_pool_id = $1 AND state = 'pending' GROUP BY job_id) AS q"
        " JOIN job j ON j.id = q.job_id LEFT JOIN verdict v ON v.job_id = j.id"
        f" ORDER BY {first}, q.queued_at, q.id OFFSET $2 LIMIT $3",
        virtual_pool,
        after,
        limit,
    )
    return [
        QueueEntry(
            position=after + place,
            job_id=JobId.of(row["id"]),
            name=row["name"],
            priority=row["priority"],
            created_at=row["created_at"],
            pending_tasks=row["pending"],
            dominant=row["dominant"],
            message=row["message"],
        )
        for place, row in enumerate(rows, start=1)
    ]


async def list_usage(
    unit: UnitOfWork,
    after: str | None,
    limit: int,
    *,
    virtual_pool: VirtualPoolId | None = None,
    tenant: TenantId | None = None,
    pool: PoolId | None = None,
) -> list[tuple[str, UsageLine]]:
    """Use against limits by virtual pool, resource and flavor; each line with its key in the list."""
    where = Where()
    where.add("u.virtual_pool_id = {}", virtual_pool)
    where.add("u.tenant_id = {}", tenant)
    where.add("v.pool_id = {}", pool)
    where.after(_USAGE_KEY, after)
    rows = await unit.fetch(
        f"SELECT u.*, v.name AS virtual_pool, v.pool_id, coalesce(a.blocked, false) AS blocked,"
        f" coalesce(a.missing, 0) AS missing, {_USAGE_KEY} AS key FROM usage u"
        f" JOIN virtual_pool_view v ON v.id = u.virtual_pool_id"
        f" LEFT JOIN admission a USING (virtual_pool_id, resource, flavor){where.text()}"
        f" ORDER BY key LIMIT {where.value(limit)}",
        *where.arguments,
    )
    return [(row["key"], _usage_line(row)) for row in rows]


def _usage_line(row: asyncpg.Record) -> UsageLine:
    return UsageLine(
        virtual_pool_id=VirtualPoolId.of(row["virtual_pool_id"]),
        virtual_pool=row["virtual_pool"],
        tenant_id=TenantId.of(row["tenant_id"]),
        pool_id=PoolId.of(row["pool_id"]),
        resource=row["resource"],
        flavor=row["flavor"] or None,
        used=row["used"],
        guaranteed=row["guaranteed"],
        hard=row["hard"],
        borrowed=max(0, row["used"] - row["guaranteed"]),
        available=max(0, row["hard"] - row["used"]),
        over_limit=max(0, row["used"] - row["hard"]),
        blocked=row["blocked"],
        missing=row["missing"] if row["blocked"] else 0,
        limit_generation=row["limit_generation"],
    )
