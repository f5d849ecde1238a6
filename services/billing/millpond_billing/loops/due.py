"""What is due: periods to close, and background work that nobody finished in time and is handed out again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millpond_billing.loops.following import why_behind
from millpond_billing.store import exports, statements
from millpond_billing.store.cursors import METERING, count_parked
from millpond_billing.usecases.metering import rate_waiting
from millpond_billing.usecases.periods import keep_up
from millpond_billing.usecases.prices import ensure_example_prices
from millpond_contracts.ids import StatementId
from millpond_kernel.clients import ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop, Unwell
from millpond_kernel.observability import ALARMS, log

# Hands a row's id to background work: (kind, id).
Enqueue = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DueTimes:
    """In seconds: between looks, from a period's end to its close, until unfinished work is handed out again.

    `patience` = how long a pass waits for metering to reach what is published.
    """

    interval: float
    grace: int
    overdue: int
    patience: float = 5.0


def due_loop(database: Database, scheduler: ServiceClient, enqueue: Enqueue, times: DueTimes) -> Loop:
    """Looks every few seconds; one holder at a time."""
    # What nobody finished is overdue again only after as long, so that each count stands until the next is due.
    late, late_until = 0, datetime.min.replace(tzinfo=UTC)

    async def run(now: datetime, lease: Lease) -> None:
        nonlocal late, late_until
        ended_by = now - timedelta(seconds=times.grace)
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await rate_waiting(unit)
            await keep_up(unit, now)
            is_due = await statements.has_due(unit, ended_by)
        made: list[StatementId] = []
        if is_due and await _is_metering_complete(database, scheduler, times.patience):
            async with database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                made = await statements.queue_due(unit, ended_by)
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            late_statements = await statements.take_overdue(unit, times.overdue)
            late_exports = await exports.take_overdue(unit, times.overdue)
        if late_statements or late_exports or now > late_until:
            late = len(late_statements) + len(late_exports)
            late_until = now + timedelta(seconds=times.overdue + 2 * times.interval)
        for statement_id in [*made, *late_statements]:
            await enqueue("statement", str(statement_id))
        for export_id in late_exports:
            await enqueue("export", str(export_id))

    def unwell() -> Unwell | None:
        if not late:
            return None
        return Unwell(
            f"{late} statements or exports were not finished within {times.overdue} s",
            "statements are closed and exports built later; nothing is lost",
            "see whether the process `celery` runs, and its log; what is overdue is handed out again by itself",
        )

    return Loop("due", times.interval, run_leased_pass=run, lease_seconds=30.0, unwell=unwell)


async def _is_metering_complete(database: Database, scheduler: ServiceClient, patience_seconds: float) -> bool:
    """Whether everything that the scheduler has published is metered; no statement is closed while that is unknown.

    No use and broken metering look alike in the segments, so the publisher is asked.
    """
    reason = await why_behind(database, scheduler, patience_seconds)
    if reason is None:
        async with database.begin(SYSTEM) as unit:
            parked = await count_parked(unit, METERING)
        reason = f"{parked} events of metering are parked" if parked else None
    if reason is not None:
        log.warning("metering_incomplete", service="billing", reason=reason)
        ALARMS.labels("billing", "metering_incomplete").inc()
    return reason is None


async def publish_example(database: Database) -> None:
    """Gives a new installation its example prices."""
    async with database.begin(SYSTEM) as unit:
        await ensure_example_prices(unit)
