"""What is due: periods to close, and background work that nobody finished in time and is handed out again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from millpond_billing.store import exports, statements
from millpond_billing.store.cursors import METERING, applied_seq
from millpond_billing.usecases.metering import rate_waiting
from millpond_billing.usecases.periods import keep_up
from millpond_billing.usecases.prices import ensure_example_prices
from millpond_contracts.ids import StatementId
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.streams import FeedGone, read_feed

# Hands a row's id to background work: (kind, id).
Enqueue = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DueTimes:
    """In seconds: between looks, from a period's end to its close, until unfinished work is handed out again."""

    interval: float
    grace: int
    overdue: int


def due_loop(database: Database, scheduler: ServiceClient, enqueue: Enqueue, times: DueTimes) -> Loop:
    """Looks every few seconds; one holder at a time."""

    async def run(now: datetime, lease: Lease) -> None:
        ended_by = now - timedelta(seconds=times.grace)
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await rate_waiting(unit)
            await keep_up(unit, now)
            is_due = await statements.has_due(unit, ended_by)
        made: list[StatementId] = []
        if is_due and await is_metering_complete(database, scheduler):
            async with database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                made = await statements.queue_due(unit, ended_by)
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            late_statements = await statements.take_overdue(unit, times.overdue)
            late_exports = await exports.take_overdue(unit, times.overdue)
        for statement_id in [*made, *late_statements]:
            await enqueue("statement", str(statement_id))
        for export_id in late_exports:
            await enqueue("export", str(export_id))

    return Loop("due", times.interval, run_leased_pass=run, lease_seconds=30.0)


async def is_metering_complete(database: Database, scheduler: ServiceClient) -> bool:
    """Whether everything that the scheduler has published is metered; no statement is closed while that is unknown.

    No use and broken metering look alike in the segments, so the publisher is asked.
    """
    try:
        head, _ = await read_feed(scheduler, "scheduler", -1)
    except (ServiceAway, FeedGone) as error:
        _alarm(f"the scheduler's feed does not answer: {error}")
        return False
    async with database.begin(SYSTEM) as unit:
        applied = await applied_seq(unit, METERING, "scheduler")
        parked = await unit.fetchval(
            "SELECT count(*) FROM dead_letter WHERE consumer = $1 AND replayed_at IS NULL", METERING
        )
    if applied < head:
        _alarm(f"metered up to {applied} of {head}")
    elif parked:
        _alarm(f"{parked} events of metering are parked")
    return applied >= head and not parked


def _alarm(reason: str) -> None:
    log.warning("metering_incomplete", service="billing", reason=reason)
    ALARMS.labels("billing", "metering_incomplete").inc()


async def publish_example(database: Database) -> None:
    """Gives a new installation its example prices."""
    async with database.begin(SYSTEM) as unit:
        await ensure_example_prices(unit)
