"""SQL of join tokens; the secret itself is never stored."""

from uuid import UUID

import asyncpg

from millpond_contracts.bodies.nodes import JoinTokenView, Market
from millpond_contracts.ids import JoinTokenId, PoolId
from millpond_kernel.uow import UnitOfWork


def join_token_of(row: asyncpg.Record) -> JoinTokenView:
    """The token of a row, without its secret."""
    return JoinTokenView(
        join_token_id=JoinTokenId.of(row["id"]),
        pool_id=None if row["pool_id"] is None else PoolId.of(row["pool_id"]),
        expires_at=row["expires_at"],
        max_uses=row["max_uses"],
        uses=row["uses"],
        market=Market(row["market"]),
        labels=row["labels"],
        revoked=row["revoked"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_join_token(
    unit: UnitOfWork,
    *,
    secret_hash: bytes,
    pool_id: PoolId | None,
    expires_in_seconds: int,
    max_uses: int | None,
    market: Market,
    labels: dict[str, str],
) -> JoinTokenView:
    """Stores a new token."""
    row = await unit.fetchrow(
        "INSERT INTO join_token (id, secret_hash, pool_id, expires_at, max_uses, labels, market, generation)"
        " VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4), $5, $6, $7, 1) RETURNING *",
        JoinTokenId.new(),
        secret_hash,
        pool_id,
        float(expires_in_seconds),
        max_uses,
        labels,
        market,
    )
    assert row is not None
    return join_token_of(row)


async def lock_join_token_by_secret(unit: UnitOfWork, secret_hash: bytes) -> JoinTokenView | None:
    """The token with this secret, its row kept so that its uses are counted one by one."""
    row = await unit.fetchrow("SELECT * FROM join_token WHERE secret_hash = $1 FOR UPDATE", secret_hash)
    return None if row is None else join_token_of(row)


async def lock_join_token(unit: UnitOfWork, token_id: JoinTokenId) -> JoinTokenView | None:
    """The token, its row kept for this transaction."""
    row = await unit.fetchrow("SELECT * FROM join_token WHERE id = $1 FOR UPDATE", token_id)
    return None if row is None else join_token_of(row)


async def count_use(unit: UnitOfWork, token_id: JoinTokenId) -> None:
    """Counts one join with the locked token."""
    counted = await unit.execute("UPDATE join_token SET uses = uses + 1 WHERE id = $1", token_id)
    assert counted == 1, f"join token {token_id} vanished under its lock"


async def revoke_join_token(unit: UnitOfWork, token_id: JoinTokenId) -> JoinTokenView:
    """The locked token, revoked."""
    row = await unit.fetchrow(
        "UPDATE join_token SET revoked = true, generation = generation + 1 WHERE id = $1 RETURNING *", token_id
    )
    assert row is not None, f"join token {token_id} vanished under its lock"
    return join_token_of(row)


async def list_join_tokens(unit: UnitOfWork, after: UUID | None, limit: int) -> list[asyncpg.Record]:
    """Rows of tokens by id."""
    return await unit.fetch(
        "SELECT * FROM join_token WHERE ($1::uuid IS NULL OR id > $1) ORDER BY id LIMIT $2", after, limit
    )
