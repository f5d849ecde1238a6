"""Rows of moves: what was ordered for which job, and each move until its task stands somewhere again."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.moves import MovedView, MoveOrderSpec, MoveOrderState, MoveOrderView, MoveResult
from millpond_contracts.ids import AllocationId, JobId, MoveOrderId, NodeId, PoolId, TaskId
from millpond_kernel.uow import UnitOfWork


async def insert_order(
    unit: UnitOfWork, key: MoveOrderId, job: JobId, pool: PoolId, wanted: MoveOrderSpec, ordered_by: str
) -> bool:
    """Stores an order of moves; False = another one for this job is not settled yet."""
    return bool(
        await unit.execute(
            "INSERT INTO move_order (id, job_id, pool_id, plan, max_moves, cool_down_seconds, ordered_by)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (job_id) WHERE settled_at IS NULL DO NOTHING",
            key,
            job,
            pool,
            wanted.plan,
            wanted.max_moves,
            wanted.cool_down_seconds,
            ordered_by,
        )
    )


async def list_requested(unit: UnitOfWork) -> list[asyncpg.Record]:
    """Orders that the leader has not looked at yet, oldest first."""
    return await unit.fetch("SELECT * FROM move_order WHERE settled_at IS NULL AND state = 'requested' ORDER BY id")


async def settle_order(
    unit: UnitOfWork, key: MoveOrderId, state: MoveOrderState, message: str | None, now: datetime | None
) -> int:
    """Moves an order that is not settled on; `now` = it is settled with that. Returns how many there were."""
    return await unit.execute(
        "UPDATE move_order SET state = $2, message = $3, settled_at = $4 WHERE id = $1 AND settled_at IS NULL",
        key,
        state.value,
        message,
        now,
    )


async def finish_orders(unit: UnitOfWork, now: datetime) -> None:
    """Settles the orders of which no move is under way any more."""
    await unit.execute(
        "UPDATE move_order o SET state = 'done', settled_at = $1 WHERE o.state = 'moving' AND o.settled_at IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM move m WHERE m.order_id = o.id AND m.result IS NULL)",
        now,
    )


async def list_targets(unit: UnitOfWork) -> dict[TaskId, NodeId]:
    """The node that is kept for each task whose move is under way."""
    rows = await unit.fetch("SELECT task_id, to_node_id FROM move WHERE result IS NULL")
    return {TaskId.of(row["task_id"]): NodeId.of(row["to_node_id"]) for row in rows}


async def list_under_way(unit: UnitOfWork) -> list[asyncpg.Record]:
    """Every move without a result, beside how its task and its task's newest allocation stand now."""
    return await unit.fetch(
        "SELECT m.*, o.pool_id, o.job_id AS served_job_id, t.attempt AS task_attempt, t.state AS task_state,"
        " t.state_since, a.node_id FROM move m JOIN move_order o ON o.id = m.order_id"
        " LEFT JOIN task t ON t.id = m.task_id LEFT JOIN allocation a ON a.id = t.allocation_id"
        " WHERE m.result IS NULL ORDER BY m.allocation_id"
    )


async def end_moves(
    unit: UnitOfWork, allocations: Sequence[UUID], results: Sequence[MoveResult], now: datetime
) -> None:
    """Notes the results of moves."""
    await unit.execute(
        "UPDATE move m SET result = x.r, ended_at = $3 FROM unnest($1::uuid[], $2::text[]) AS x(a, r)"
        " WHERE m.allocation_id = x.a AND m.result IS NULL",
        allocations,
        [result.value for result in results],
        now,
    )


async def count_recent(unit: UnitOfWork, pool: PoolId) -> int:
    """How many tasks of a pool were moved within the hour."""
    found: int = await unit.fetchval(
        "SELECT count(*) FROM move m JOIN move_order o ON o.id = m.order_id WHERE o.pool_id = $1"
        " AND m.ordered_at > clock_timestamp() - interval '1 hour'",
        pool,
    )
    return found


async def list_moved_jobs(unit: UnitOfWork, seconds: int) -> set[UUID]:
    """Jobs of which a task was moved so lately."""
    rows = await unit.fetch(
        "SELECT DISTINCT job_id FROM move WHERE ordered_at > clock_timestamp() - make_interval(secs => $1)",
        float(seconds),
    )
    return {row["job_id"] for row in rows}


async def list_orders(unit: UnitOfWork, job: JobId, before: UUID | None, limit: int) -> list[MoveOrderView]:
    """What was ordered for a job, newest first, each with its moves."""
    rows = await unit.fetch(
        "SELECT * FROM move_order WHERE job_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3",
        job,
        before,
        limit,
    )
    moved = await unit.fetch(
        "SELECT * FROM move WHERE order_id = ANY($1) ORDER BY allocation_id", [row["id"] for row in rows]
    )
    return [order_view(row, [each for each in moved if each["order_id"] == row["id"]]) for row in rows]


def order_view(row: asyncpg.Record, moves: Sequence[asyncpg.Record]) -> MoveOrderView:
    """An order of a row with its moves."""
    return MoveOrderView(
        move_order_id=MoveOrderId.of(row["id"]),
        job_id=JobId.of(row["job_id"]),
        pool_id=PoolId.of(row["pool_id"]),
        plan=row["plan"],
        max_moves=row["max_moves"],
        cool_down_seconds=row["cool_down_seconds"],
        ordered_by=row["ordered_by"],
        state=MoveOrderState(row["state"]),
        message=row["message"],
        requested_at=row["requested_at"],
        settled_at=row["settled_at"],
        moves=[
            MovedView(
                allocation_id=AllocationId.of(each["allocation_id"]),
                job_id=JobId.of(each["job_id"]),
                from_node_id=NodeId.of(each["from_node_id"]),
                to_node_id=NodeId.of(each["to_node_id"]),
                lost_seconds=each["lost_seconds"],
                result=None if each["result"] is None else MoveResult(each["result"]),
                ended_at=each["ended_at"],
            )
            for each in moves
        ],
    )
