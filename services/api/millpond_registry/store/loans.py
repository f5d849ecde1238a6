"""SQL of loans and shortages."""

from collections.abc import Iterable, Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.loans import LoanState, LoanView, ShortageView
from millpond_contracts.ids import LoanId, NodeId, PoolId
from millpond_kernel.uow import UnitOfWork

_OPEN = "state IN ('moving', 'lent', 'returning')"
_SELECT = "SELECT l.*, n.name AS node_name FROM loan l JOIN node n ON n.id = l.node_id"


def loan_view(row: asyncpg.Record) -> LoanView:
    """The loan of a row that `_SELECT` gave."""
    return LoanView(
        loan_id=LoanId.of(row["id"]),
        node_id=NodeId.of(row["node_id"]),
        node_name=row["node_name"],
        from_pool_id=PoolId.of(row["from_pool_id"]),
        to_pool_id=PoolId.of(row["to_pool_id"]),
        threshold=row["threshold"],
        amount=row["amount"],
        state=LoanState(row["state"]),
        state_since=row["state_since"],
        reason=row["reason"],
        asked_at=row["asked_at"],
        arrived_at=row["arrived_at"],
        due_at=row["due_at"],
        ended_at=row["ended_at"],
        generation=row["generation"],
    )


async def list_open_loans(unit: UnitOfWork) -> list[LoanView]:
    """Every loan that is not over; there are few."""
    return [loan_view(row) for row in await unit.fetch(f"{_SELECT} WHERE l.{_OPEN} ORDER BY l.id")]


async def list_loans(
    unit: UnitOfWork, pool_id: PoolId, after: UUID | None, limit: int, state: LoanState | None = None
) -> list[LoanView]:
    """Loans from and to a pool by id."""
    rows = await unit.fetch(
        f"{_SELECT} WHERE (l.from_pool_id = $1 OR l.to_pool_id = $1) AND ($2::uuid IS NULL OR l.id > $2)"
        " AND l.state = coalesce($4::text, l.state) ORDER BY l.id LIMIT $3",
        pool_id,
        after,
        limit,
        state,
    )
    return [loan_view(row) for row in rows]


async def lock_loan(unit: UnitOfWork, loan_id: LoanId) -> LoanView | None:
    """The loan, its row kept for this transaction."""
    row = await unit.fetchrow(f"{_SELECT} WHERE l.id = $1 FOR NO KEY UPDATE OF l", loan_id)
    return None if row is None else loan_view(row)


async def count_open_loans(unit: UnitOfWork, pool_id: PoolId) -> int:
    """How many loans from or to the pool are not over."""
    found: int = await unit.fetchval(
        f"SELECT count(*) FROM loan WHERE (from_pool_id = $1 OR to_pool_id = $1) AND {_OPEN}", pool_id
    )
    return found


async def insert_loan(unit: UnitOfWork, loan: LoanView) -> None:
    """Stores a new loan; a node has one that is not over."""
    await unit.execute(
        "INSERT INTO loan (id, node_id, from_pool_id, to_pool_id, threshold, amount, state, state_since, reason,"
        " asked_at, generation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        loan.loan_id,
        loan.node_id,
        loan.from_pool_id,
        loan.to_pool_id,
        loan.threshold,
        loan.amount,
        loan.state,
        loan.state_since,
        loan.reason,
        loan.asked_at,
        loan.generation,
    )


async def update_loan(unit: UnitOfWork, loan: LoanView) -> None:
    """Writes a loan over its locked row, whose generation was one less."""
    changed = await unit.execute(
        "UPDATE loan SET state = $2, state_since = $3, reason = $4, arrived_at = $5, due_at = $6, ended_at = $7,"
        " generation = $8 WHERE id = $1 AND generation = $8 - 1",
        loan.loan_id,
        loan.state,
        loan.state_since,
        loan.reason,
        loan.arrived_at,
        loan.due_at,
        loan.ended_at,
        loan.generation,
    )
    assert changed == 1, f"loan {loan.loan_id} changed under its lock"


async def find_idle_nodes(unit: UnitOfWork, pool_ids: Sequence[UUID]) -> list[asyncpg.Record]:
    """Rows (id, name, pool_id, tally) of ready nodes of these pools that take work and hold none."""
    return await unit.fetch(
        "SELECT n.id, n.name, n.pool_id, t.tally FROM node n JOIN node_tally t ON t.node_id = n.id"
        " WHERE n.pool_id = ANY($1::uuid[]) AND n.pool_id = t.pool_id AND n.state = 'ready'"
        " AND n.cordon_reasons = '{}' AND NOT EXISTS"
        " (SELECT 1 FROM allocation a WHERE a.node_id = n.id AND NOT a.released) ORDER BY n.id",
        list(pool_ids),
    )


async def list_shortages(unit: UnitOfWork, pool_id: PoolId | None = None) -> list[ShortageView]:
    """What is short, of one pool or of all."""
    rows = await unit.fetch(
        "SELECT pool_id, threshold, low, available, since FROM shortage WHERE ($1::uuid IS NULL OR pool_id = $1)"
        " ORDER BY pool_id, threshold",
        pool_id,
    )
    return [
        ShortageView(
            pool_id=PoolId.of(row["pool_id"]),
            threshold=row["threshold"],
            low=row["low"],
            available=row["available"],
            since=row["since"],
        )
        for row in rows
    ]


async def put_shortage(unit: UnitOfWork, shortage: ShortageView) -> None:
    """Remembers that a pool is short."""
    await unit.execute(
        "INSERT INTO shortage (pool_id, threshold, low, available, since) VALUES ($1, $2, $3, $4, $5)"
        " ON CONFLICT (pool_id, threshold) DO UPDATE SET low = excluded.low, available = excluded.available",
        shortage.pool_id,
        shortage.threshold,
        shortage.low,
        shortage.available,
        shortage.since,
    )


async def delete_shortages(unit: UnitOfWork, pool_id: PoolId, thresholds: Iterable[str]) -> None:
    """Forgets what is short no longer."""
    await unit.execute(
        "DELETE FROM shortage WHERE pool_id = $1 AND threshold = ANY($2::text[])", pool_id, list(thresholds)
    )
