"""The consumer that meters, and whether it had to leave something out."""

from millpond_kernel.uow import UnitOfWork

# The consumer that meters the scheduler's allocations.
METERING = "metering"


async def count_parked(unit: UnitOfWork, consumer: str) -> int:
    """Events that a consumer could not apply and nobody has replayed."""
    return int(
        await unit.fetchval("SELECT count(*) FROM dead_letter WHERE consumer = $1 AND replayed_at IS NULL", consumer)
    )
