"""Background work that nobody did in time is handed out again."""

from collections.abc import Awaitable, Callable
from datetime import datetime

from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_scheduler.store import packings

OVERDUE_SECONDS = 60

# Hands a row's id to background work: (kind, id).
Enqueue = Callable[[str, str], Awaitable[None]]


def handing_loop(database: Database, enqueue: Enqueue) -> Loop:
    """Looks once a minute for proposals of packings that were not computed; one holder at a time."""

    async def hand_out(now: datetime, lease: Lease) -> None:
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            overdue = await packings.take_overdue(unit, OVERDUE_SECONDS)
        for packing in overdue:
            await enqueue("packing", str(packing))

    return Loop("hand_out", OVERDUE_SECONDS, run_leased_pass=hand_out, lease_seconds=2.0 * OVERDUE_SECONDS)
