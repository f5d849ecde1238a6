"""How far metering has followed the scheduler."""

from millpond_kernel.uow import UnitOfWork

# The consumer that meters the scheduler's allocations.
METERING = "metering"


async def applied_seq(unit: UnitOfWork, consumer: str, publisher: str) -> int:
    """The sequence up to which a consumer has applied its publisher's events; zero before the first."""
    seq = await unit.fetchval("SELECT seq FROM cursor WHERE consumer = $1 AND publisher = $2", consumer, publisher)
    return 0 if seq is None else int(seq)


async def count_parked(unit: UnitOfWork, consumer: str) -> int:
    """Events that a consumer could not apply and nobody has replayed."""
    return int(
        await unit.fetchval("SELECT count(*) FROM dead_letter WHERE consumer = $1 AND replayed_at IS NULL", consumer)
    )
