"""The database's clock, which dates everything."""

from datetime import datetime

from millpond_kernel.uow import UnitOfWork


async def read_clock(unit: UnitOfWork) -> datetime:
    """The database's time now."""
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    return now
