"""What is due: periods to close, and background work that nobody finished in time and is handed out again."""

from collections.abc import Callable
from datetime import datetime

from millpond_billing.store import exports, statements
from millpond_billing.usecases.prices import ensure_example_prices
from millpond_billing.usecases.statements import queue_due
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop

# Hands a row's id to background work: (kind, id).
Enqueue = Callable[[str, str], None]


def due_loop(database: Database, enqueue: Enqueue, grace_seconds: int, overdue_seconds: int) -> Loop:
    """Looks every few seconds; one holder at a time."""

    async def run(now: datetime, lease: Lease) -> None:
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            made = await queue_due(unit, now, grace_seconds)
            late_statements = await statements.list_overdue(unit, overdue_seconds)
            late_exports = await exports.list_overdue(unit, overdue_seconds)
        for statement_id in dict.fromkeys([*made, *late_statements]):
            enqueue("statement", str(statement_id))
        for export_id in late_exports:
            enqueue("export", str(export_id))

    return Loop("due", 5.0, run_leased_pass=run, lease_seconds=30.0)


async def publish_example(database: Database) -> None:
    """Gives a new installation its example prices."""
    async with database.begin(SYSTEM) as unit:
        await ensure_example_prices(unit)
