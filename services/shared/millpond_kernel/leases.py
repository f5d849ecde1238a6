"""Time-limited rights with a fencing epoch, kept in PostgreSQL.

Holding a lease is an optimisation; what makes a second holder harmless is that every write checks the epoch in its own
transaction (`check_epoch`).
"""

from dataclasses import dataclass
from uuid import UUID

from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.uow import UnitOfWork

_ACQUIRE = """
INSERT INTO lease AS l (name, holder, epoch, expires_at)
VALUES ($1, $2, 1, clock_timestamp() + make_interval(secs => $3))
ON CONFLICT (name) DO UPDATE SET
    holder = excluded.holder,
    epoch = CASE WHEN l.holder = excluded.holder AND l.expires_at > clock_timestamp() THEN l.epoch ELSE l.epoch + 1 END,
    expires_at = excluded.expires_at
WHERE l.holder = excluded.holder OR l.expires_at <= clock_timestamp()
RETURNING epoch
"""


class LeaseLost(Exception):
    """The epoch is no longer the current one: another holder took over, and this write must not happen."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease held until it expires. `epoch` rises with every change of holder."""

    name: str
    holder: UUID
    epoch: int


async def acquire_lease(database: Database, name: str, holder: UUID, ttl_seconds: float) -> Lease | None:
    """Takes or renews the lease; None while another holder has it. A lapsed lease comes back with a higher epoch."""
    async with database.begin(SYSTEM) as unit:
        epoch = await unit.fetchval(_ACQUIRE, name, holder, ttl_seconds)
    return None if epoch is None else Lease(name, holder, int(epoch))


async def release_lease(database: Database, lease: Lease) -> None:
    """Lets the lease lapse now, so that a waiting copy takes over without waiting for its end."""
    async with database.begin(SYSTEM) as unit:
        await unit.execute(
            "UPDATE lease SET expires_at = clock_timestamp() WHERE name = $1 AND holder = $2 AND epoch = $3",
            lease.name,
            lease.holder,
            lease.epoch,
        )


async def check_epoch(unit: UnitOfWork, lease: Lease) -> None:
    """Locks the lease row against a change of holder for the rest of the transaction.

    Raises:
        LeaseLost: the epoch is stale.
    """
    row = await unit.fetchrow("SELECT 1 FROM lease WHERE name = $1 AND epoch = $2 FOR SHARE", lease.name, lease.epoch)
    if row is None:
        raise LeaseLost(f"{lease.name}: epoch {lease.epoch} is over")
