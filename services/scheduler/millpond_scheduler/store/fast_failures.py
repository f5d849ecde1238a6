"""SQL of jobs that failed on a node as soon as they had started.

A row is kept a day after its node worked again (`forgiven`): a job that failed at once on two nodes says nothing of
either.
"""

from collections.abc import Collection
from datetime import datetime

from millpond_contracts.ids import JobId, NodeId
from millpond_kernel.uow import UnitOfWork


async def forgive(unit: UnitOfWork, nodes: Collection[NodeId]) -> None:
    """Ends the row of failures of nodes."""
    await unit.execute("UPDATE fast_failure SET forgiven = true WHERE node_id = ANY($1) AND NOT forgiven", list(nodes))


async def note_failure(unit: UnitOfWork, node: NodeId, job: JobId, now: datetime) -> int:
    """Notes a job that failed on a node at once; returns how many different ones did in a row, and nowhere else."""
    await unit.execute(
        "INSERT INTO fast_failure AS f (node_id, job_id, at) VALUES ($1, $2, $3)"
        " ON CONFLICT (node_id, job_id) DO UPDATE SET at = excluded.at, forgiven = false",
        node,
        job,
        now,
    )
    return int(
        await unit.fetchval(
            "SELECT count(*) FROM fast_failure f WHERE node_id = $1 AND NOT forgiven AND NOT EXISTS"
            " (SELECT FROM fast_failure o WHERE o.job_id = f.job_id AND o.node_id <> f.node_id)",
            node,
        )
    )


async def forget_failures(unit: UnitOfWork, before: datetime) -> None:
    """Deletes what is older than an instant."""
    await unit.execute("DELETE FROM fast_failure WHERE at < $1", before)


_IS_CLOSED = "(g.quarantined_at IS NOT NULL OR v.body->'cordon_reasons' ? 'health')"


async def is_closed(unit: UnitOfWork, node: NodeId) -> bool:
    """Whether the node is in quarantine already, or does not exist any more."""
    return bool(
        await unit.fetchval(
            f"SELECT coalesce((SELECT v.removed OR {_IS_CLOSED} FROM node_guard g JOIN node_view v USING (node_id)"
            " WHERE node_id = $1), true)",
            node,
        )
    )


async def count_closed(unit: UnitOfWork, node: NodeId) -> tuple[int, int, int]:
    """Of the node's pool: nodes in quarantine, all nodes, and those beside this one that take work."""
    row = await unit.fetchrow(
        f"SELECT count(*) FILTER (WHERE {_IS_CLOSED}) AS closed, count(*) AS nodes,"
        " count(*) FILTER (WHERE g.open AND NOT coalesce(l.silent, true) AND g.node_id <> $1) AS others"
        " FROM node_guard g JOIN node_view v USING (node_id) LEFT JOIN node_lease l USING (node_id)"
        " WHERE NOT v.removed AND v.pool_id = (SELECT pool_id FROM node_view WHERE node_id = $1)",
        node,
    )
    assert row is not None
    return row["closed"], row["nodes"], row["others"]


async def close_node(unit: UnitOfWork, node: NodeId, now: datetime) -> None:
    """Lets no commit place anything on the node from this transaction on."""
    await unit.execute("UPDATE node_guard SET quarantined_at = $2, open = false WHERE node_id = $1", node, now)
