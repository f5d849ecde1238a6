"""SQL of the nonces that an agent signs to open a session; each serves once."""

from datetime import datetime

from millpond_contracts.ids import NodeId
from millpond_kernel.uow import UnitOfWork


async def insert_challenge(unit: UnitOfWork, node_id: NodeId, nonce: str, seconds: int) -> datetime:
    """Stores a nonce for the node and tells when it ends."""
    expires_at: datetime = await unit.fetchval(
        "INSERT INTO challenge (nonce, node_id, expires_at)"
        " VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3)) RETURNING expires_at",
        nonce,
        node_id,
        float(seconds),
    )
    return expires_at


async def count_pending(unit: UnitOfWork, node_id: NodeId) -> int:
    """The node's nonces that still wait for a signature; lapsed ones are forgotten on the way."""
    await unit.execute("DELETE FROM challenge WHERE node_id = $1 AND expires_at <= clock_timestamp()", node_id)
    return int(await unit.fetchval("SELECT count(*) FROM challenge WHERE node_id = $1", node_id))


async def take_challenge(unit: UnitOfWork, node_id: NodeId, nonce: str) -> bool:
    """Whether the nonce was given to this node and has not lapsed; it cannot be taken again."""
    taken = await unit.execute(
        "DELETE FROM challenge WHERE nonce = $1 AND node_id = $2 AND expires_at > clock_timestamp()", nonce, node_id
    )
    return taken == 1
