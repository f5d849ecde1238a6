"""The loop that forgets: numbered outbox rows and idempotency keys after 35 days (decision record on retention).

A consumer that was away for longer gets 410 from the feed and loads a snapshot.
"""

from datetime import datetime, timedelta
from itertools import takewhile

from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop

KEEP = timedelta(days=35)
INTERVAL_SECONDS = 600.0
LEASE_SECONDS = 300.0
BATCH = 1000


def retention_loop(database: Database) -> Loop:
    """The loop of one service."""

    async def run_pass(now: datetime, lease: Lease) -> None:
        await delete_expired(database, now - KEEP, lease)

    return Loop("retention", INTERVAL_SECONDS, run_leased_pass=run_pass, lease_seconds=LEASE_SECONDS)


async def delete_expired(database: Database, before: datetime, lease: Lease | None = None) -> int:
    """Deletes what was written before an instant, in batches of a transaction each; how many rows.

    Outbox rows go from the lowest sequence upwards, so that what is kept has no holes.
    """
    total = 0
    while True:
        async with database.begin(SYSTEM) as unit:
            if lease is not None:
                await check_epoch(unit, lease)
            rows = await unit.fetch(
                "SELECT seq, recorded_at < $1 AS expired FROM outbox WHERE seq IS NOT NULL ORDER BY seq LIMIT $2",
                before,
                BATCH,
            )
            expired = [row["seq"] for row in takewhile(lambda row: row["expired"], rows)]
            if expired:
                await unit.execute("DELETE FROM outbox WHERE seq <= $1", expired[-1])
            keys = await unit.execute(
                "DELETE FROM idempotency WHERE (tenant_id, key) IN (SELECT tenant_id, key FROM idempotency"
                " WHERE created_at < $1 ORDER BY created_at LIMIT $2)",
                before,
                BATCH,
            )
        total += len(expired) + keys
        if len(expired) < BATCH and keys < BATCH:
            return total
