"""Exports are kept for a time: whose time is over is handed to background work, which has the files.

What is not deleted then, because a message was lost, is found again by the next pass.
"""

from datetime import datetime, timedelta

from millpond_billing.loops.due import Enqueue
from millpond_billing.store import exports
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop

INTERVAL_SECONDS = 300.0
LEASE_SECONDS = 60.0
KEEP_ROWS = timedelta(days=400)
BATCH = 500


def forgetting_loop(database: Database, enqueue: Enqueue) -> Loop:
    """Looks every few minutes; one holder at a time."""

    async def run(now: datetime, lease: Lease) -> None:
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await exports.delete_old(unit, now - KEEP_ROWS, BATCH)
            expired = await exports.list_expired(unit, now, BATCH)
        for export_id in expired:
            await enqueue("forget", str(export_id))

    return Loop("forgetting", INTERVAL_SECONDS, run_leased_pass=run, lease_seconds=LEASE_SECONDS)
